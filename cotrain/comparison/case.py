"""One case of a study that trains, the results of its finished runs, and how its settings differ from the paper's."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from cotrain.comparison.budget import BASELINE_METHOD, Length
from cotrain.comparison.compare import Comparison, Contender
from cotrain.comparison.results_table import Table
from cotrain.comparison.statistics import paired, spread
from cotrain.config import Config, plain
from cotrain.evaluation.head_stats import mean_disagreement
from cotrain.evaluation.outputs import Scores, score
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs
from cotrain.types import Unit

NOTHING: Mapping[str, Any] = {}
ORIGINS = {"per_method"}  # optimiser settings that only record where the other ones come from


@dataclass(frozen=True)
class Case:
    """One row of a study: a method with some settings changed."""

    name: str  # also the name of its folder
    title: str
    method: str = "mhct"
    settings: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False  # the other cases are compared with it
    trainings: int = 1  # networks trained on the same split; all their heads form one ensemble
    paper: float | None = None  # error of the ensemble in percent; None: not reported, or only in a figure
    paper_single: float | None = None  # error of a single head

    @property
    def contenders(self) -> list[Contender]:
        names = [self.name, *(f"{self.name}-again-{again}" for again in range(1, self.trainings))]
        return [Contender(name, self.method, self.settings, again) for again, name in enumerate(names)]


@dataclass(frozen=True)
class CaseResult:
    """The results of the finished runs of a case."""

    case: Case
    outputs: Mapping[int, Mapping[str, Outputs]]  # by seed and part: "test", and "valid" if there are validation images
    parameters: int  # of one network; 0: no run is finished
    length: Length
    rule: str  # how the ensemble votes
    unit: Unit

    @cached_property
    def scores(self) -> dict[int, Scores]:
        return {seed: score(parts["test"].logits, parts["test"].labels, self.rule) for seed, parts in self.by_seed}

    @property
    def by_seed(self) -> list[tuple[int, Mapping[str, Outputs]]]:
        return sorted(self.outputs.items())

    @property
    def single(self) -> dict[int, float]:
        """Mean error of the single heads, in percent."""
        return {seed: statistics.mean(scores.head_errors) for seed, scores in self.scores.items()}

    @property
    def ensemble(self) -> dict[int, float]:
        """Error of the ensemble of all heads, in percent."""
        return {seed: scores.error for seed, scores in self.scores.items()}

    @property
    def disagreement(self) -> dict[int, float]:
        """Percent of test images on which two heads differ, over all pairs of heads."""
        return {seed: mean_disagreement(parts["test"].logits.argmax(dim=-1)) for seed, parts in self.by_seed}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per seed."""
        values = {"error": self.ensemble, "single_head_error": self.single, "heads_disagree": self.disagreement}
        return [
            {"case": self.case.name, "seed": seed, **{name: round(each[seed], 3) for name, each in values.items()}}
            for seed, _ in self.by_seed
        ]


def reference_among(results: Sequence[CaseResult]) -> CaseResult:
    [reference] = [each for each in results if each.case.reference]
    return reference


def case_named(results: Sequence[CaseResult], name: str) -> CaseResult:
    [found] = [each for each in results if each.case.name == name]
    return found


def structure_table(results: Sequence[CaseResult], what: str, reference_name: str) -> Table:
    """Errors and cost of each structure, compared with the reference, which the table calls `reference_name`."""
    reference = reference_among(results)
    return Table(
        {
            what: [each.case.title for each in results],
            "ensemble %": [spread([*each.ensemble.values()]) for each in results],
            "paper": [percent(each.case.paper) or "drawn only" for each in results],
            "single head %": [spread([*each.single.values()]) for each in results],
            f"against {reference_name}": [
                "" if each is reference else paired(reference.ensemble, each.ensemble) for each in results
            ],
            "n": [str(len(each.outputs)) for each in results],
            "parameters": [f"{each.parameters:,}" if each.parameters else "" for each in results],
            f"step / {BASELINE_METHOD}": [f"{each.length.cost:.1f}" for each in results],
        }
    )


def percent(error: float | None) -> str:
    return "" if error is None else f"{error:.2f}"


def result_of(case: Case, comparison: Comparison, plan: Mapping[str, Length]) -> CaseResult:
    """The results so far. A seed counts when all networks of the case are trained."""
    outputs, parameters = {}, 0
    for seed in comparison.seeds:
        results = [comparison.result(contender, seed) for contender in case.contenders]
        finished = [result for result in results if result is not None]
        if len(finished) == case.trainings:
            runs = [Run.open(comparison.run_folder(contender, seed)) for contender in case.contenders]
            outputs[seed] = together([run.outputs(len(comparison.dataset.classes)) for run in runs])
            parameters = finished[0].training.parameters or 0
    return CaseResult(case, outputs, parameters, plan[case.name], comparison.base.run.ensemble, comparison.dataset.unit)


def together(trainings: Sequence[Mapping[str, Outputs]]) -> dict[str, Outputs]:
    """One ensemble of the heads of several networks that were trained on the same split."""
    joined = {}
    for part, first in trainings[0].items():
        assert all(np.array_equal(each[part].rows, first.rows) for each in trainings)
        joined[part] = replace(first, logits=torch.cat([each[part].logits for each in trainings]))
    return joined


def differing_settings(ours: Config, paper: Config) -> Iterator[str]:
    """A phrase for each setting that differs from the paper's, except `run` settings that do not affect the results."""
    for section in ("data", "augment", "model", "method", "optim", "run"):
        values, theirs = (getattr(each, section).model_dump(exclude=ORIGINS) for each in (ours, paper))
        if section == "optim":
            values["unlabelled"], theirs["unlabelled"] = ours.unlabelled, paper.unlabelled
        for key in ("ensemble",) if section == "run" else values:
            if values[key] != theirs[key]:
                yield f"{section}.{key} {plain(values[key])}, not {plain(theirs[key])}"
