"""Where the shared trunk ends and the heads begin, as the paper draws it."""

from collections.abc import Sequence

from cotrain.comparison.table import Table
from cotrain.config import Config
from cotrain.model import backbone
from cotrain.report.figures import PRINTED, Figure
from cotrain.studies.case import Case, Found, Study, table_of_structures
from cotrain.studies.figures import errors_and_parameters


class StructureStudy(Study):
    name = "structure"
    about = "where the trunk ends and the heads begin"

    def cases(self, config: Config) -> list[Case]:
        """From separate networks to heads that are no more than a classifier."""
        net = backbone(config.model.backbone, channels=3, classes=2, last_width=config.model.last_width)
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
