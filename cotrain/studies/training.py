"""A study that trains: at which scale, on which data, and what it writes as runs finish."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from cotrain.comparison.budget import Length
from cotrain.comparison.compare import Comparison
from cotrain.comparison.table import Table
from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.pipeline.fit import configured, opened
from cotrain.recipes import recipe_named
from cotrain.report.figures import Figure
from cotrain.studies.base import Asked, Scale, Study
from cotrain.studies.case import Case, Found, found_of, other_settings
from cotrain.studies.writing import Written
from cotrain.types import UserError


@dataclass(frozen=True)
class Size:
    """Of the runs of a study."""

    steps: int | None  # none: the recipe's
    seeds: int


SIZES: dict[Scale, Size] = {"minutes": Size(250, 3), "hours": Size(None, 3), "published": Size(None, 5)}


class TrainingStudy(Study, ABC):
    """Cases that are trained on the same splits, as a table and a figure."""

    data: ClassVar[str] = "cifar10"  # the paper's
    recipe: ClassVar[str] = "cifar10"
    settings: ClassVar[Mapping[str, Any]] = {}  # of every case

    @abstractmethod
    def cases(self, config: Config) -> list[Case]: ...

    @abstractmethod
    def table(self, found: Sequence[Found]) -> Table: ...

    @abstractmethod
    def figure(self, found: Sequence[Found]) -> Figure:
        """One case at least has finished runs."""

    def run(self, asked: Asked) -> Written:
        return Training.of(self, asked).run(asked.console)


@dataclass(frozen=True)
class Training:
    study: TrainingStudy
    cases: Sequence[Case]
    comparison: Comparison

    @classmethod
    def of(cls, study: TrainingStudy, asked: Asked) -> "Training":
        """With everything checked that can be, before anything is written."""
        data, config, scale = asked.data, asked.config, asked.scale
        paper, size = recipe_named(study.recipe), SIZES[scale]
        changes = {**study.settings, **({"optim.steps": size.steps} if size.steps else {}), **asked.settings}
        if data is None and scale == "minutes":
            data = "digits"
        elif data is None:
            data, changes = study.data, {"data.labels": paper.data.labels, **changes}
        if config is None and scale == "published":
            config = paper
        data = opened(data, config, changes, asked.memory, asked.console)
        base = configured(data, config, asked.preset, changes)
        cases = study.cases(base)
        for key in asked.settings:
            if all(key in case.settings for case in cases):
                raise UserError(f"study {study.name} sets {key} itself; leave it out")
        comparison = Comparison.of(
            data,
            Path(asked.out or Path("runs") / f"study-{study.name}-{data.name}-{scale}"),
            [contender for case in cases for contender in case.contenders],
            seeds=size.seeds if asked.seeds is None else asked.seeds,
            config=base,
            settings={key: value for key, value in (asked.settings or {}).items() if key.startswith("optim.")},
            what=study.name,
        )
        if not comparison.split(comparison.seeds[0]).test:
            raise UserError(f"{data.name} has no labelled test images, and none are set aside; a study needs some")
        return cls(study, cases, comparison)

    def run(self, console: Console) -> Written:
        plan, failed = self.comparison.train(console, self.write)
        written = self.write(plan)
        if written is not None:
            written.say(console)
        if failed:
            raise UserError(f"{len(failed)} runs failed; {failed[0]}; the same command tries again")
        if written is None:
            raise UserError("no case of the study is finished yet; other processes train its runs")
        return written

    def write(self, plan: Mapping[str, Length]) -> Written | None:
        """What is finished so far."""
        found = [found_of(case, self.comparison, plan) for case in self.cases]
        if not any(each.outputs for each in found):
            return None
        written = Written(
            self.comparison.folder,
            self.study.name,
            self.heading,
            what_differs(self.study, self.comparison.dataset, self.comparison.base, self.comparison.for_all),
            self.study.table(found),
            self.study.figure(found),
        )
        written.write()
        return written

    @property
    def heading(self) -> str:
        base, comparison = self.comparison.base, self.comparison
        return (
            f"{self.study.about}; {comparison.dataset.name}: {comparison.images}; {base.model.backbone}; "
            f"{base.optim.steps:,} steps; {comparison.over_seeds}"
        )


def what_differs(study: TrainingStudy, dataset: Dataset, config: Config, for_all: Mapping[str, Any]) -> str:
    """In words, every setting of training and voting that is not the paper's, so that nobody takes one number for the
    other.

    A case is held against the same case in the paper's recipe: what it varies is no difference, and a setting of one
    method alone is said of that method. `for_all` are optimiser settings that the user asked for.
    """
    paper = recipe_named(study.recipe)
    theirs = {case.name: case.contenders[0].config(paper) for case in study.cases(paper)}
    methods: dict[str, set[str]] = {}  # by phrase, in order
    cases = [case for case in study.cases(config) if case.name in theirs]
    for case in cases:
        ours = replace(case.contenders[0], settings={**for_all, **case.settings}).config(config)
        for phrase in other_settings(ours, theirs[case.name]):
            methods.setdefault(phrase, set()).add(case.method)
    everywhere = {case.method for case in cases}
    used = Path(dataset.source or dataset.name).name
    parts = [] if dataset.source == study.data else [f"{used} instead of {study.data}"]
    for phrase, where in methods.items():
        parts.append(phrase if where == everywhere else f"{phrase} ({', '.join(sorted(where))})")
    return f"not as in the paper: {'; '.join(parts)}" if parts else "as in the paper"
