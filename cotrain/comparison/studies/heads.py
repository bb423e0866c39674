"""How many heads: error and parameters with one to seven heads, as in the paper's figure."""

from collections.abc import Sequence

from cotrain.comparison.case import Case, CaseResult, case_named, structure_table
from cotrain.comparison.claims import Claim
from cotrain.comparison.results_table import Table
from cotrain.comparison.study_figures import errors_and_parameters
from cotrain.comparison.training_study import TrainingStudy
from cotrain.config import Config
from cotrain.report.figures import PRINTED, Figure

MOST_HEADS = 7
PAPER_ERRORS = {1: 4.43, 3: 3.84}  # percent, from the paper's ablation table; its figure has the others


class HeadsStudy(TrainingStudy):
    about = "one to seven heads"

    def cases(self, config: Config) -> list[Case]:
        return [
            Case(
                f"heads-{heads}",
                str(heads),
                settings={"method.heads": heads},
                reference=heads == 1,
                paper=PAPER_ERRORS.get(heads),
            )
            for heads in range(1, MOST_HEADS + 1)
        ]

    def table(self, results: Sequence[CaseResult]) -> Table:
        return structure_table(results, "heads", "one head")

    def claims(self, results: Sequence[CaseResult]) -> list[Claim]:
        one, three, most = (case_named(results, f"heads-{heads}").ensemble for heads in (1, 3, MOST_HEADS))
        return [
            Claim("Three heads are better than one", three, one),
            Claim("Seven heads are better than three", most, three),
        ]

    def figure(self, results: Sequence[CaseResult]) -> Figure:
        return errors_and_parameters(PRINTED, results, "heads")
