"""Where the shared trunk ends and the heads begin, as the paper draws it."""

from collections.abc import Sequence

from cotrain.comparison.table import Table
from cotrain.config import Config
from cotrain.model import Backbone
from cotrain.model.build import parts_of
from cotrain.report.figures import PRINTED, Figure
from cotrain.studies.case import Case, Found, table_of_structures
from cotrain.studies.figures import errors_and_parameters
from cotrain.studies.training import TrainingStudy
from cotrain.types import UserError


class StructureStudy(TrainingStudy):
    about = "where the trunk ends and the heads begin"

    def cases(self, config: Config) -> list[Case]:
        """From separate networks to heads that are no more than a classifier."""
        net = parts_of(config.model, config.method, channels=3, classes=2)
        if not isinstance(net, Backbone):
            raise UserError(f"study structure cuts stages, and {config.model.backbone} comes as a trunk and heads")
        return [
            Case(
                f"share-{cut}",
                cut,
                settings={"model.share": cut},
                reference=cut == net.cut,
                paper=3.84 if cut == net.cut else None,
            )
            for cut in net.cuts
        ]

    def table(self, found: Sequence[Found]) -> Table:
        return table_of_structures(found, "last shared stage", "the paper's cut")

    def figure(self, found: Sequence[Found]) -> Figure:
        return errors_and_parameters(PRINTED, found, "last shared stage")
