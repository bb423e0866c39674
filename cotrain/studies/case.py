"""A case of a study that trains, what its finished runs say, and how its setting differs from the paper's."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from cotrain.comparison.budget import YARDSTICK, Length
from cotrain.comparison.compare import Comparison, Contender
from cotrain.comparison.statistics import paired, spread
from cotrain.comparison.table import Table
from cotrain.config import Config, plain
from cotrain.evaluation.outputs import Scores, score
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs

NOTHING: Mapping[str, Any] = {}
WHERE_FROM = {"per_method", "replaced"}  # settings of the optimiser that say where the others come from


@dataclass(frozen=True)
class Case:
    """One row of a study: a method with some settings changed."""

    name: str  # of its folder
    title: str
    method: str = "mhct"
    settings: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False  # the others are compared with it
    trainings: int = 1  # on the same split; all their heads are one ensemble
    paper: float | None = None  # its error of the ensemble in percent; none: not told, or only drawn
    paper_single: float | None = None  # and of a single head

    @property
    def contenders(self) -> list[Contender]:
        names = [self.name, *(f"{self.name}-again-{again}" for again in range(1, self.trainings))]
        return [Contender(name, self.method, self.settings, again) for again, name in enumerate(names)]


@dataclass(frozen=True)
class Found:
    """What the finished runs of a case say."""

    case: Case
    outputs: Mapping[int, Mapping[str, Outputs]]  # by seed: of test images, perhaps of valid ones
    parameters: int  # of one training; 0: none is finished
    length: Length
    rule: str  # of the ensemble

    @cached_property
    def scores(self) -> dict[int, Scores]:
        return {seed: score(parts["test"].logits, parts["test"].labels, self.rule) for seed, parts in self.by_seed}

    @property
    def by_seed(self) -> list[tuple[int, Mapping[str, Outputs]]]:
        return sorted(self.outputs.items())

    @property
    def single(self) -> dict[int, float]:
        """Mean error of the heads, each by itself, in percent."""
        return {seed: statistics.mean(scores.head_errors) for seed, scores in self.scores.items()}

    @property
    def ensemble(self) -> dict[int, float]:
        """Error of all heads together, in percent."""
        return {seed: scores.error for seed, scores in self.scores.items()}


def reference_of(found: Sequence[Found]) -> Found:
    [reference] = [each for each in found if each.case.reference]
    return reference


def table_of_structures(found: Sequence[Found], what: str, named: str) -> Table:
    """Errors and cost by structure, each against the reference, by the name that it has there."""
    reference = reference_of(found)
    return Table(
        {
            what: [each.case.title for each in found],
            "ensemble %": [spread([*each.ensemble.values()]) for each in found],
            "paper": [percent(each.case.paper) or "drawn only" for each in found],
            "single head %": [spread([*each.single.values()]) for each in found],
            f"against {named}": [
                "" if each is reference else paired(reference.ensemble, each.ensemble) for each in found
            ],
            "n": [str(len(each.outputs)) for each in found],
            "parameters": [f"{each.parameters:,}" if each.parameters else "" for each in found],
            f"step / {YARDSTICK}": [f"{each.length.cost:.1f}" for each in found],
        }
    )


def percent(error: float | None) -> str:
    return "" if error is None else f"{error:.2f}"


def found_of(case: Case, comparison: Comparison, plan: Mapping[str, Length]) -> Found:
    """A seed counts when all trainings of the case are finished with it."""
    outputs, parameters = {}, 0
    for seed in comparison.seeds:
        results = [comparison.result(contender, seed) for contender in case.contenders]
        finished = [result for result in results if result is not None]
        if len(finished) == case.trainings:
            runs = [Run.open(comparison.run_folder(contender, seed)) for contender in case.contenders]
            outputs[seed] = together([run.outputs(len(comparison.dataset.classes)) for run in runs])
            parameters = finished[0]["parameters"]
    return Found(case, outputs, parameters, plan[case.name], comparison.base.run.ensemble)


def together(trainings: Sequence[Mapping[str, Outputs]]) -> dict[str, Outputs]:
    """One ensemble of the heads of several networks, which saw the same split."""
    joined = {}
    for part, first in trainings[0].items():
        assert all(np.array_equal(each[part].rows, first.rows) for each in trainings)
        joined[part] = replace(first, logits=torch.cat([each[part].logits for each in trainings]))
    return joined


def other_settings(ours: Config, papers: Config) -> Iterator[str]:
    """A phrase for each setting that is not the paper's, but for those of the run that change no number."""
    for section in ("data", "augment", "model", "method", "optim", "run"):
        values, theirs = (getattr(each, section).model_dump(exclude=WHERE_FROM) for each in (ours, papers))
        if section == "optim":
            values["unlabelled"], theirs["unlabelled"] = ours.unlabelled, papers.unlabelled
        for key in ("ensemble",) if section == "run" else values:
            if values[key] != theirs[key]:
                yield f"{section}.{key} {plain(values[key])}, not {plain(theirs[key])}"
