"""How long the runs of a comparison are: a few trial steps of each method tell it, and what they told is kept."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from rich.console import Console

from cotrain.config import Config, differences
from cotrain.data import Dataset, Split
from cotrain.device import pick_device
from cotrain.progress import counted
from cotrain.runs.checkpoint import make_folder, read_json, write_json
from cotrain.training.state import pool_of
from cotrain.training.timing import Pace, pace
from cotrain.types import Pool, UserError

Equal = Literal["steps", "time"]
PLAN, LOCK = "plan.json", ".lock"
PATIENCE = 1.0  # seconds of trial steps
YARDSTICK = "supervised"  # whose step all steps are compared with


@dataclass(frozen=True)
class Length:
    """Of one method's runs."""

    steps: int
    seconds: float  # as expected
    cost: float  # of a step, rounds of the method's own included, in steps of labelled-only training


def with_defaults(protocol: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """A kept protocol, where settings that are newer than it have their defaults."""
    sections = {name: part for name, part in protocol.items() if name in Config.model_fields}
    return {**protocol, **Config.parse(sections).model_dump(exclude={"method"})}


@dataclass(frozen=True)
class Planning:
    folder: Path
    dataset: Dataset
    split: Split  # to take the trial steps on
    protocol: Mapping[str, Mapping[str, Any]]  # what must be the same for all runs
    configs: Mapping[str, Config]  # by name of what is compared, the first first; and that of the yardstick
    equal: Equal
    minutes: float | None  # of each run, if time is equal; none: as long as the first takes

    def lengths(self, console: Console) -> dict[str, Length]:
        """What they rest on is kept: a comparison that goes on keeps its steps."""
        path = self.folder / PLAN
        with self._alone():
            kept = read_json(path) if path.exists() else {"protocol": self.protocol, "budget": None, "pace": {}}
            if not isinstance(kept, dict) or not {"protocol", "budget", "pace"} <= kept.keys():
                raise UserError(f"{path} is damaged; delete it to plan anew: finished runs of the same length stay")
            if changed := differences(with_defaults(kept["protocol"]), self.protocol):
                raise UserError(f"{self.folder} is another comparison ({'; '.join(changed)}); choose another --out")
            new = [name for name in self.configs if name not in kept["pace"]]
            tried: dict[str, list[Pace]] = {name: [] for name in new}
            for name in counted([*new, *new], 2 * len(new), "trial steps", console):
                tried[name].append(self._pace(name))
            kept["pace"] |= {name: asdict(min(paces, key=lambda of: of.step)) for name, paces in tried.items()}
            paces = {name: Pace(**kept["pace"][name]) for name in self.configs}
            if self.equal == "time" and kept["budget"] is None:
                first = next(iter(self.configs))
                whole = paces[first].seconds(self.configs[first], self._pool)
                kept["budget"] = 60 * self.minutes if self.minutes else whole
            write_json(path, kept)
        return {name: self.length(name, own, paces[YARDSTICK], kept["budget"]) for name, own in paces.items()}

    def length(self, name: str, own: Pace, yardstick: Pace, budget: float | None) -> Length:
        """As many steps as the config says, or as go into the seconds of the budget."""
        config = self.configs[name]

        def seconds(steps: int) -> float:
            return own.seconds(config.changed({"optim.steps": steps}), self._pool)

        steps = config.optim.steps
        if budget is not None:
            steps = max(1, bisect_right(range(int(budget / own.step) + 1), budget, key=seconds, lo=1) - 1)
        return Length(steps, seconds(steps), seconds(steps) / steps / yardstick.step)

    @cached_property
    def _pool(self) -> Pool:
        return pool_of(self.dataset, self.split)

    def _pace(self, name: str) -> Pace:
        config = self.configs[name]
        return pace(config, self.dataset, self.split, pick_device(config.run.device), patience=PATIENCE)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time measures and plans."""
        make_folder(self.folder, {PLAN, LOCK})
        with FileLock(self.folder / LOCK):
            yield
