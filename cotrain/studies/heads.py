"""How many heads: error and parameters with one to seven of them, as the paper draws them."""

from collections.abc import Sequence

from cotrain.comparison.table import Table
from cotrain.config import Config
from cotrain.report.figures import PRINTED, Figure
from cotrain.studies.case import Case, Found, table_of_structures
from cotrain.studies.figures import errors_and_parameters
from cotrain.studies.training import TrainingStudy

MOST = 7
TOLD = {1: 4.43, 3: 3.84}  # percent, in the paper's table of ablations; the others it only draws


class HeadsStudy(TrainingStudy):
    about = "one to seven heads"

    def cases(self, config: Config) -> list[Case]:
        return [
            Case(
                f"heads-{heads}",
                str(heads),
                settings={"method.heads": heads},
                reference=heads == 1,
                paper=TOLD.get(heads),
            )
            for heads in range(1, MOST + 1)
        ]

    def table(self, found: Sequence[Found]) -> Table:
        return table_of_structures(found, "heads", "one head")

    def figure(self, found: Sequence[Found]) -> Figure:
        return errors_and_parameters(PRINTED, found, "heads")
