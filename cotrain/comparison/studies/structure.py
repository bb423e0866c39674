"""Where the shared trunk ends and the heads begin, as in the paper's figure."""

from collections.abc import Sequence

from cotrain.comparison.case import Case, CaseResult, reference_among, structure_table
from cotrain.comparison.claims import Claim
from cotrain.comparison.results_table import Table
from cotrain.comparison.study_figures import errors_and_parameters
from cotrain.comparison.training_study import TrainingStudy
from cotrain.config import Config
from cotrain.model import Backbone
from cotrain.model.build import last_frozen, parts_of
from cotrain.report.figures import PRINTED, Figure
from cotrain.types import UserError


class StructureStudy(TrainingStudy):
    about = "where the trunk ends and the heads begin"

    def cases(self, config: Config) -> list[Case]:
        """From separate networks to heads that are only a classifier."""
        net = parts_of(config.model, config.method, channels=3, classes=2)
        if not isinstance(net, Backbone):
            raise UserError(
                f"study structure needs a network of stages to cut; {config.model.backbone} is a trunk and heads, "
                "already cut"
            )
        if (last := last_frozen(net, config.model, config.model.share)) is not None:
            raise UserError(
                f"study structure moves where the heads begin, and {config.model.backbone} is frozen up to {last}; "
                "it needs a network that learns: leave out the recipe, or set model.trunk=learned"
            )
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

    def table(self, results: Sequence[CaseResult]) -> Table:
        return structure_table(results, "last shared stage", "the paper's cut")

    def claims(self, results: Sequence[CaseResult]) -> list[Claim]:
        ours = reference_among(results)
        return [
            Claim(f"The paper's cut is better than the cut {each.case.title}", ours.ensemble, each.ensemble)
            for each in results
            if each is not ours
        ]

    def figure(self, results: Sequence[CaseResult]) -> Figure:
        return errors_and_parameters(PRINTED, results, "last shared stage")
