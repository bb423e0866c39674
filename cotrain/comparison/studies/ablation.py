"""The paper's ablation table: the error without each part of Multi-Head Co-Training."""

from collections.abc import Sequence

from cotrain.comparison.case import Case, CaseResult, case_named, percent, reference_among
from cotrain.comparison.claims import Claim
from cotrain.comparison.results_table import Table
from cotrain.comparison.statistics import paired, spread
from cotrain.comparison.study_figures import errors_next_to_paper
from cotrain.comparison.training_study import TrainingStudy
from cotrain.config import Config
from cotrain.report.figures import PRINTED, Figure


class AblationStudy(TrainingStudy):
    about = "the error without each part of the method"

    def cases(self, config: Config) -> list[Case]:
        one_head = {"method.heads": 1}
        one_view = {"method.strong_views": "shared"}
        return [
            Case("whole", "Multi-Head Co-Training", reference=True, paper_single=4.22, paper=3.84),
            Case("one-head", "1) one head, 3 times", settings=one_head, trainings=3, paper_single=4.43, paper=4.23),
            Case("one-strong-view", "2) one strong view", settings=one_view, paper_single=4.45, paper=4.03),
            Case(
                "no-weak-view",
                "3) no weak augmentation",
                settings={"method.weak_augment": False},
                paper_single=4.86,
                paper=4.55,
            ),
            Case(
                "same-start",
                "4) heads start the same",
                settings={"model.head_init": "copied"},
                paper_single=4.28,
                paper=3.86,
            ),
            Case("no-average", "5) no averaged weights", settings={"optim.ema": 0.0}, paper_single=6.23, paper=5.30),
        ]

    def table(self, results: Sequence[CaseResult]) -> Table:
        whole = reference_among(results)
        return Table(
            {
                "ablation": [each.case.title for each in results],
                "single head %": [spread([*each.single.values()]) for each in results],
                "paper single %": [percent(each.case.paper_single) for each in results],
                "ensemble %": [spread([*each.ensemble.values()]) for each in results],
                "paper ensemble %": [percent(each.case.paper) for each in results],
                "against the whole": [
                    "" if each is whole else paired(whole.ensemble, each.ensemble) for each in results
                ],
                "n": [str(len(each.outputs)) for each in results],
            }
        )

    def claims(self, results: Sequence[CaseResult]) -> list[Claim]:
        whole, one_view = reference_among(results), case_named(results, "one-strong-view")
        others = [each for each in results if each is not whole]
        return [
            *(
                Claim(f"The whole method is better than {each.case.title}", whole.ensemble, each.ensemble)
                for each in others
            ),
            Claim("The ensemble is better than its single heads", whole.ensemble, whole.single),
            Claim(
                f"Diversity comes from the strong views: heads that share one disagree on fewer test {whole.unit.many}",
                one_view.disagreement,
                whole.disagreement,
            ),
        ]

    def figure(self, results: Sequence[CaseResult]) -> Figure:
        return errors_next_to_paper(PRINTED, results)
