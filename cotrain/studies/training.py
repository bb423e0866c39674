"""A study that trains: at which scale, on which data, and what it writes as runs finish."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from cotrain.comparison.budget import Length
from cotrain.comparison.compare import Comparison
from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.pipeline.fit import configured, opened
from cotrain.recipes import recipe_named
from cotrain.studies.case import Case, Study, found_of, what_differs
from cotrain.studies.writing import Written
from cotrain.types import UserError

Scale = Literal["minutes", "hours", "published"]


@dataclass(frozen=True)
class Size:
    """Of the runs of a study."""

    steps: int | None  # none: the recipe's
    seeds: int


SIZES: dict[Scale, Size] = {"minutes": Size(250, 3), "hours": Size(None, 3), "published": Size(None, 5)}


@dataclass(frozen=True)
class Training:
    study: Study
    cases: Sequence[Case]
    comparison: Comparison

    @classmethod
    def of(
        cls,
        study: Study,
        data: str | Path | Dataset | None,
        scale: Scale,
        *,
        out: str | Path | None = None,
        seeds: int | None = None,
        config: Config | None = None,
        settings: Mapping[str, Any] | None = None,
        preset: str = "paper",
        memory: float | None = None,
        console: Console | None = None,
    ) -> "Training":
        """With everything checked that can be, before anything is written."""
        paper, size = recipe_named(study.recipe), SIZES[scale]
        changes = {**study.settings, **({"optim.steps": size.steps} if size.steps else {}), **(settings or {})}
        if data is None and scale == "minutes":
            data = "digits"
        elif data is None:
            data, changes = study.data, {"data.labels": paper.data.labels, **changes}
        if config is None and scale == "published":
            config = paper
        data = opened(data, config, changes, memory, console or Console(quiet=True))
        base = configured(data, config, preset, changes)
        cases = study.cases(base)
        for key in settings or {}:
            if all(key in case.settings for case in cases):
                raise UserError(f"study {study.name} sets {key} itself; leave it out")
        comparison = Comparison.of(
            data,
            Path(out or Path("runs") / f"study-{study.name}-{data.name}-{scale}"),
            [contender for case in cases for contender in case.contenders],
            seeds=size.seeds if seeds is None else seeds,
            config=base,
            settings={key: value for key, value in (settings or {}).items() if key.startswith("optim.")},
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
