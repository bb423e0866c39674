"""How long the runs of a comparison are. A few trial steps measure the pace of each method, which is then kept."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock
from pydantic import Field, ValidationError
from rich.console import Console

from cotrain.config import Config, differences
from cotrain.data import Dataset, Split
from cotrain.device import pick_device
from cotrain.progress import counted
from cotrain.runs.schema import File, Number
from cotrain.storage.reading import read_json
from cotrain.storage.writing import make_folder, write_json
from cotrain.training.experiment import Experiment, Prepared
from cotrain.training.state import pool_of
from cotrain.training.timing import Pace, pace
from cotrain.types import Pool, UserError

Equal = Literal["steps", "time"]
PLAN, LOCK = "plan.json", ".lock"
PATIENCE = 1.0  # seconds of trial steps per method
BASELINE_METHOD = "supervised"  # the cost of every step is relative to this method's


@dataclass(frozen=True)
class Length:
    """The length of one method's runs."""

    steps: int
    seconds: float  # expected
    cost: float  # of a step, relative to the baseline's; includes rounds such as relabelling between steps


def with_defaults(protocol: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """A saved protocol, completed with the defaults of settings that did not exist when it was saved."""
    sections = {name: part for name, part in protocol.items() if name in Config.model_fields}
    return {**protocol, **Config.parse(sections).model_dump(exclude={"method"})}


@dataclass(frozen=True)
class Plan:
    """What plan.json holds."""

    protocol: Mapping[str, Mapping[str, Any]]
    budget: float | None  # seconds per run
    pace: Mapping[str, Pace]


class PaceFile(File):
    step: Annotated[Number, Field(ge=1e-9)]
    refresh: Annotated[Number, Field(ge=0)]


class PlanFile(File):
    protocol: dict[str, dict[str, Any]]
    budget: Annotated[Number, Field(gt=0)] | None
    pace: dict[str, PaceFile]


def read_plan(path: Path) -> Plan:
    content = read_json(path)
    try:
        found = PlanFile.model_validate(content)
        with_defaults(found.protocol)
    except (ValidationError, UserError) as error:
        raise UserError(
            f"{path} is damaged; delete it to plan again (finished runs of the same length are kept)"
        ) from error
    return Plan(found.protocol, found.budget, {name: Pace(one.step, one.refresh) for name, one in found.pace.items()})


@dataclass(frozen=True)
class Planning:
    folder: Path
    dataset: Dataset
    split: Split  # for the trial steps
    protocol: Mapping[str, Mapping[str, Any]]  # what all runs must have in common
    configs: Mapping[str, Config]  # by contender's name, in order; and the baseline's
    equal: Equal
    minutes: float | None  # per run, if `equal` is "time"; None: as long as the first contender takes
    prepared: Callable[[Config, Console], Prepared]

    def lengths(self, console: Console) -> dict[str, Length]:
        """The length of every contender's runs. The pace is kept, so a resumed comparison has the same steps."""
        path = self.folder / PLAN
        with self._locked():
            kept = read_plan(path) if path.exists() else Plan(self.protocol, None, {})
            if changed := differences(with_defaults(kept.protocol), self.protocol):
                raise UserError(
                    f"{self.folder} belongs to another comparison ({'; '.join(changed)}); choose another --out"
                )
            new = [name for name in self.configs if name not in kept.pace]
            tried: dict[str, list[Pace]] = {name: [] for name in new}
            for name in counted([*new, *new], 2 * len(new), "trial steps", console):
                tried[name].append(self._pace(name, console))
            fastest = {name: min(paces, key=lambda one: one.step) for name, paces in tried.items()}
            known = {**kept.pace, **fastest}
            paces, budget = {name: known[name] for name in self.configs}, kept.budget
            if self.equal == "time" and budget is None:
                first = next(iter(self.configs))
                whole = paces[first].seconds(self.configs[first], self._pool)
                budget = 60 * self.minutes if self.minutes else whole
            write_json(path, asdict(Plan(kept.protocol, budget, known)))
        return {name: self.length(name, own, paces[BASELINE_METHOD], budget) for name, own in paces.items()}

    def length(self, name: str, own: Pace, baseline: Pace, budget: float | None) -> Length:
        """The steps of the config, or as many as fit into `budget` seconds."""
        config = self.configs[name]

        def seconds(steps: int) -> float:
            return own.seconds(config.changed({"optim.steps": steps}), self._pool)

        steps = config.optim.steps
        if budget is not None:
            steps = max(1, bisect_right(range(int(budget / own.step) + 1), budget, key=seconds, lo=1) - 1)
        return Length(steps, seconds(steps), seconds(steps) / steps / baseline.step)

    @cached_property
    def _pool(self) -> Pool:
        return pool_of(self.dataset, self.split)

    def _pace(self, name: str, console: Console) -> Pace:
        config = self.configs[name]
        device, prepared = pick_device(config.run.device), self.prepared(config, console)
        return pace(Experiment(config, self.dataset, self.split, device, prepared=prepared), PATIENCE)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process at a time measures and plans."""
        make_folder(self.folder, {PLAN, LOCK})
        with FileLock(self.folder / LOCK):
            yield
