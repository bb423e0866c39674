"""A study that trains networks: its scale, its data, and the report that it updates between runs."""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from cotrain.comparison.budget import Length
from cotrain.comparison.case import NOTHING, Case, CaseResult, differing_settings, result_of
from cotrain.comparison.claims import Claim
from cotrain.comparison.compare import Comparison
from cotrain.comparison.results_table import Table
from cotrain.comparison.study import Scale, Study, StudyOptions
from cotrain.comparison.study_output import StudyReport
from cotrain.config import Config
from cotrain.config.defaults import FROM_SCRATCH, configured, opened, scratch_config
from cotrain.config.recipes import recipe_named
from cotrain.data import Dataset
from cotrain.model.named import is_pretrained
from cotrain.report.figures import Figure
from cotrain.types import UserError


@dataclass(frozen=True)
class Size:
    """How long the runs of a study are, and how many seeds it has."""

    steps: int | None  # None: the recipe's
    seeds: int


SIZES: dict[Scale, Size] = {"minutes": Size(250, 3), "hours": Size(None, 3), "published": Size(None, 5)}
PAUSE = 10.0  # seconds between reports


class TrainingStudy(Study, ABC):
    """Cases trained on the same splits, shown as a table and a figure."""

    data: ClassVar[str] = "cifar10"  # the dataset in the paper
    recipe: ClassVar[str] = "cifar10"
    settings: ClassVar[Mapping[str, Any]] = {}  # of all cases

    @abstractmethod
    def cases(self, config: Config) -> list[Case]: ...

    @abstractmethod
    def table(self, results: Sequence[CaseResult]) -> Table: ...

    def claims(self, results: Sequence[CaseResult]) -> list[Claim]:
        """What the paper says about these cases."""
        return []

    def rows(self, results: Sequence[CaseResult]) -> list[dict[str, Any]]:
        """The numbers behind the table, one row per case and seed."""
        return [row for each in results for row in each.rows]

    @abstractmethod
    def figure(self, results: Sequence[CaseResult]) -> Figure:
        """Called when at least one case has finished runs."""

    def run(self, options: StudyOptions) -> StudyReport:
        return Training.of(self, options).run(options.console)


@dataclass(frozen=True)
class Training:
    study: TrainingStudy
    cases: Sequence[Case]
    comparison: Comparison

    @classmethod
    def of(cls, study: TrainingStudy, options: StudyOptions) -> "Training":
        """Check everything that can be checked before anything is written."""
        data, config, scale = options.data, options.config, options.scale
        paper, size = recipe_named(study.recipe), SIZES[scale]
        changes = {**study.settings, **options.settings}
        backbone = str(changes.get("model.backbone") or (config or recipe_named(FROM_SCRATCH)).model.backbone)
        if size.steps and not is_pretrained(backbone):  # the heads of a pretrained network are trained in seconds
            changes = {"optim.steps": size.steps, **changes}
        if data is None and scale == "minutes":
            data = "digits"
        elif data is None:
            data, changes = study.data, {"data.labels": paper.data.labels, **changes}
        if config is None and scale == "published":
            config = paper
        data = opened(data, config or recipe_named(FROM_SCRATCH), changes, options.memory, options.console)
        if config is None and "model.backbone" not in changes:
            config = scratch_config(data)  # as in the paper
        base = configured(data, config, options.preset, changes)
        cases = study.cases(base)
        for key in options.settings:
            if all(key in case.settings for case in cases):
                raise UserError(f"study {study.name} varies {key} itself; leave it out")
        comparison = Comparison.of(
            data,
            Path(options.out or Path("runs") / f"study-{study.name}-{data.name}-{scale}"),
            [contender for case in cases for contender in case.contenders],
            seeds=size.seeds if options.seeds is None else options.seeds,
            config=base,
            settings={key: value for key, value in (options.settings or {}).items() if key.startswith("optim.")},
            what=study.name,
        )
        if not comparison.split(comparison.seeds[0]).test:
            raise UserError(
                f"{data.name} has no labelled test {data.unit.many}; a study needs some: set data.test_share above 0"
            )
        return cls(study, cases, comparison)

    def run(self, console: Console) -> StudyReport:
        plan, failed = self.comparison.train(console, self._write_now_and_then())
        report = self.write(plan)
        if report is not None:
            report.show(console)
        if failed:
            raise UserError(f"{len(failed)} runs failed; {failed[0]}; run the same command to try again")
        if report is None:
            raise UserError("no case of the study is finished yet; other processes are training its runs")
        return report

    def _write_now_and_then(self) -> Callable[[Mapping[str, Length]], None]:
        """Reports while the study goes on: very short runs do not wait for figures that the next run replaces."""
        written = -math.inf

        def write(plan: Mapping[str, Length]) -> None:
            nonlocal written
            if time.monotonic() > written + PAUSE:
                self.write(plan)
                written = time.monotonic()

        return write

    def write(self, plan: Mapping[str, Length]) -> StudyReport | None:
        """Write a report on the runs that are finished so far."""
        results = [result_of(case, self.comparison, plan) for case in self.cases]
        if not any(each.outputs for each in results):
            return None
        report = StudyReport(
            self.comparison.folder,
            self.study.name,
            self.heading,
            differences_from_paper(self.study, self.comparison.dataset, self.comparison.base, self.comparison.for_all),
            self.study.table(results),
            self.study.figure(results),
            [claim.sentence for claim in self.study.claims(results)],
            [json.dumps(row) for row in self.study.rows(results)],
        )
        report.write()
        return report

    @property
    def heading(self) -> str:
        base, comparison = self.comparison.base, self.comparison
        return (
            f"{self.study.about}; {comparison.dataset.name}: {comparison.images}; {base.model.backbone}; "
            f"{base.optim.steps:,} steps; {comparison.over_seeds}"
        )


def differences_from_paper(
    study: TrainingStudy, dataset: Dataset, config: Config, for_all: Mapping[str, Any] = NOTHING
) -> str:
    """Every setting of training and voting that differs from the paper's, so that nobody confuses the two results.

    Each case is compared with the same case in the paper's recipe, so what a study varies does not count. If only one
    method differs, the phrase names it. `for_all` are the optimiser settings that the user asked for.
    """
    paper = recipe_named(study.recipe)
    in_paper = {case.name: case.contenders[0].config(paper) for case in study.cases(paper)}
    methods: dict[str, set[str]] = {}  # by phrase, in order
    cases = [case for case in study.cases(config) if case.name in in_paper]
    for case in cases:
        ours = replace(case.contenders[0], settings={**for_all, **case.settings}).config(config)
        for phrase in differing_settings(ours, in_paper[case.name]):
            methods.setdefault(phrase, set()).add(case.method)
    all_methods = {case.method for case in cases}
    used = Path(dataset.source or dataset.name).name
    parts = [] if dataset.source == study.data else [f"{used} instead of {study.data}"]
    for phrase, where in methods.items():
        parts.append(phrase if where == all_methods else f"{phrase} ({', '.join(sorted(where))})")
    return f"differs from the paper: {'; '.join(parts)}" if parts else "as in the paper"
