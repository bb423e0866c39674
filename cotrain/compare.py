"""Several methods under one protocol: the same data, splits, network and seeds, and the same steps or the same time.

A comparison is a folder: plan.json, a run folder for each method and seed, and the tables. What is done is not done
again. Several processes may work on one comparison: each takes the next run that nobody trains.
"""

import fcntl
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from scipy.stats import t as student_t

from cotrain.checkpoint import read_json, write_json
from cotrain.config import Config, differences
from cotrain.data import Dataset, Split, draw_split
from cotrain.device import pick_device
from cotrain.fitting import configured, trained
from cotrain.methods import METHODS, method_class
from cotrain.progress import clock, counted, say
from cotrain.ranks import ALONE
from cotrain.run import Busy, Run
from cotrain.table import Table
from cotrain.train import check_batches, check_trainable, seconds_a_step
from cotrain.types import UserError

Equal = Literal["steps", "time"]
LAST_EVALUATIONS = 5
YARDSTICK = "supervised"  # whose step all steps are compared with


@dataclass(frozen=True)
class Contender:
    """A method, perhaps with other settings: `fixmatch`, or `mhct:strong_views=routed`."""

    name: str
    method: str
    settings: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> "Contender":
        name = text.strip()
        method, *changes = name.split(":")
        pairs = [change.partition("=") for change in changes]
        for key, equals, _ in pairs:
            if not equals:
                raise UserError(f"--methods {name}: {key!r} is not KEY=VALUE, as in mhct:strong_views=routed")
        return cls(name, method_class(method).name, {f"method.{key}": value for key, _, value in pairs})

    def config(self, base: Config) -> Config:
        """A recipe's settings of its own method are kept for that method; others have their own."""
        return base.changed({"method": self.method, **self.settings})


def contenders(methods: str) -> list[Contender]:
    """From `a,b:key=value,c`, or `all`."""
    names = ["mhct", *(name for name in METHODS if name != "mhct")] if methods == "all" else methods.split(",")
    found = [Contender.parse(name) for name in names if name.strip()]
    if not found:
        raise UserError(f"--methods is empty; there are: {', '.join(METHODS)}")
    for number, contender in enumerate(found):
        if contender in found[:number]:
            raise UserError(f"--methods has {contender.name} twice")
    return found


@dataclass(frozen=True)
class Plan:
    """How long each run is. It is kept, so that a comparison that goes on later keeps its steps."""

    steps: int  # of each run, if steps are equal
    budget: float | None  # seconds of each run, if time is equal
    seconds_a_step: Mapping[str, float]  # of each method, as tried before the first run

    def steps_of(self, name: str) -> int:
        return self.steps if self.budget is None else max(1, int(self.budget / self.seconds_a_step[name]))

    def seconds_of(self, name: str) -> float:
        return self.steps_of(name) * self.seconds_a_step[name]

    def cost(self, name: str) -> float:
        """Of a step, in steps of labelled-only training."""
        return self.seconds_a_step[name] / self.seconds_a_step[YARDSTICK]


@dataclass(frozen=True)
class Comparison:
    folder: Path
    dataset: Dataset
    base: Config
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    equal: Equal
    minutes: float | None  # of each run, if time is equal; none: as long as the first method takes

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        folder: Path,
        methods: str,
        *,
        seeds: int,
        equal: Equal = "steps",
        minutes: float | None = None,
        config: Config | None = None,
        preset: str = "paper",
        settings: Mapping[str, Any] | None = None,
    ) -> "Comparison":
        """With everything checked that can be, before anything is written."""
        if seeds < 1:
            raise UserError(f"--seeds {seeds}: there must be one at least")
        if minutes is not None and (equal == "steps" or minutes <= 0):
            raise UserError("--minutes is for --equal time, and more than 0")
        changes = {"run.test_evaluations": LAST_EVALUATIONS, **(settings or {}), "run.baseline": False}
        for key in changes:
            if key.partition(".")[0] == "method":
                raise UserError(f"{key}: say it for the method it is of, as in --methods mhct:strong_views=routed")
        base = configured(dataset, config, preset, changes)
        first = base.run.seed
        made = cls(folder, dataset, base, contenders(methods), range(first, first + seeds), equal, minutes)
        for contender in made.contenders:
            check_trainable(contender.config(base), dataset)
            check_batches(contender.config(base), made.split(first))
        return made

    def split(self, seed: int) -> Split:
        split = draw_split(self.dataset, self.base.data, seed)
        split.check_usable(self.dataset)
        return split

    def run_folder(self, contender: Contender, seed: int) -> Path:
        return self.folder / contender.name.replace(":", ",") / f"seed-{seed}"

    def plan(self, console: Console) -> Plan:
        """The one in the folder, with trial steps of the methods that it does not know yet."""
        path, protocol = self.folder / "plan.json", self._protocol()
        with self._alone():
            kept: dict[str, Any] = {"protocol": protocol, "budget": None, "seconds_a_step": {}}
            if path.exists():
                kept = read_json(path)
            if changed := differences(kept["protocol"], protocol):
                raise UserError(f"{self.folder} is another comparison ({'; '.join(changed)}); choose another --out")
            known, budget = kept["seconds_a_step"], kept["budget"]
            wanted = {one.name: one for one in [Contender.parse(YARDSTICK), *self.contenders]}
            new = [one for name, one in wanted.items() if name not in known]
            for one in counted([*new, *new], 2 * len(new), "trial steps", console):
                tried = self._seconds_a_step(one)
                known[one.name] = min(tried, known.get(one.name, tried))
            if self.equal == "time" and budget is None:
                first = self.contenders[0].name
                budget = 60 * self.minutes if self.minutes else self.base.optim.steps * known[first]
            write_json(path, {"protocol": protocol, "budget": budget, "seconds_a_step": known})
        return Plan(self.base.optim.steps, budget, known)

    def _protocol(self) -> dict[str, dict[str, Any]]:
        """What must be the same for all runs of a comparison."""
        settings = self.base.changed({"run.seed": 0}).model_dump(exclude={"method"})
        compared = {"data": self.dataset.fingerprint, "equal": self.equal, "minutes": self.minutes}
        return {"comparison": compared, **settings}

    def _seconds_a_step(self, contender: Contender) -> float:
        config = contender.config(self.base)
        return seconds_a_step(config, self.dataset, self.split(self.seeds[0]), pick_device(config.run.device))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time measures and plans."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def train(self, console: Console) -> tuple[Plan, list[str]]:
        """All runs that are not done and that nobody else trains, seed by seed; what failed, in words."""
        plan, failed = self.plan(console), []
        runs = [(contender, seed) for seed in self.seeds for contender in self.contenders]
        seconds = [plan.seconds_of(contender.name) for contender, _ in runs]
        done = [self.result(contender, seed) is not None for contender, seed in runs]
        left = sum(each for each, finished in zip(seconds, done, strict=True) if not finished)
        say(console, f"{len(runs)} runs, {sum(done)} done; about {clock(left)} for the others -> {self.folder}")
        for number, (contender, seed) in enumerate(runs):
            if self.result(contender, seed) is not None:
                continue
            left -= seconds[number]
            title = f"{number + 1}/{len(runs)} {contender.name}, seed {seed}"
            try:
                trained(self._run(contender, seed, plan), self.dataset, ALONE, console, part_of=(title, max(left, 0)))
            except Busy:
                say(console, f"{title}: another process trains it")
            except UserError as error:
                say(console, f"{title}: {error}")
                failed.append(f"{contender.name}, seed {seed}: {error}")
        return plan, failed

    def _run(self, contender: Contender, seed: int, plan: Plan) -> Run:
        folder = self.run_folder(contender, seed)
        changes = {"run.seed": seed, "optim.steps": plan.steps_of(contender.name)}
        config, split = contender.config(self.base).changed(changes), self.split(seed)
        if not (folder / "config.json").exists():
            return Run.create(folder, config, split, "cotrain compare")
        run = Run.open(folder)
        run.check_same(config, split)
        return run

    def result(self, contender: Contender, seed: int) -> dict[str, Any] | None:
        folder = self.run_folder(contender, seed)
        return Run.open(folder).result if (folder / "config.json").exists() else None

    @property
    def caption(self) -> str:
        """What the table is of."""
        base, seeds = self.base, self.seeds
        split = self.split(seeds[0])
        images = (
            f"{len(split.labelled):,} labels, {len(split.unlabelled):,} unlabelled, {len(split.test):,} test images"
        )
        over = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
        return (
            f"{self.dataset.name}: {images}; {base.model.backbone}; equal {self.equal}; mean ± standard deviation over "
            f"{over}; differences with Student's 95 % interval over common seeds"
        )

    def table(self, plan: Plan) -> Table:
        """What is finished so far, one row a method, each against the first over the seeds that both have."""
        results = {
            contender.name: {seed: result for seed in self.seeds if (result := self.result(contender, seed))}
            for contender in self.contenders
        }
        first = self.contenders[0].name
        columns = {
            "method": [*results],
            "test error %": [spread(values(each, "test_error")) for each in results.values()],
            "n": [str(len(each)) for each in results.values()],
            f"median of last {self.base.run.test_evaluations} %": [
                spread(values(each, "median_test_error")) for each in results.values()
            ],
            f"against {first}": [
                "" if name == first else paired(results[first], each) for name, each in results.items()
            ],
            "parameters": [f"{each[min(each)]['parameters']:,}" if each else "" for each in results.values()],
            f"step / {YARDSTICK}": [f"{plan.cost(name):.1f}" for name in results],
            "steps": [f"{plan.steps_of(name):,}" for name in results],
            "time": [clock(statistics.mean(values(each, "seconds"))) if each else "" for each in results.values()],
            "ECE %": [spread(values(each, "ece")) for each in results.values()],
        }
        return Table(columns)


def values(results: Mapping[int, Mapping[str, Any]], name: str) -> list[float]:
    """Of the seeds that have one, in their order."""
    return [result[name] for _, result in sorted(results.items()) if result[name] is not None]


def spread(errors: Sequence[float]) -> str:
    """Mean and standard deviation over the seeds."""
    if not errors:
        return ""
    if len(errors) == 1:
        return f"{errors[0]:.2f}"
    return f"{statistics.mean(errors):.2f} ± {statistics.stdev(errors):.2f}"


def paired(
    first: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]], confidence: float = 0.95
) -> str:
    """The mean difference of the test errors over common seeds, with Student's interval, and what it says."""
    pairs = [(first[seed]["test_error"], other[seed]["test_error"]) for seed in sorted(first.keys() & other.keys())]
    known = [theirs - ours for ours, theirs in pairs if ours is not None and theirs is not None]
    if len(known) < 2:
        return "".join(f"{difference:+.2f}, one seed" for difference in known)
    low, high = interval(known, confidence)
    word = "better" if high < 0 else "worse" if low > 0 else "unclear"
    return f"{statistics.mean(known):+.2f} ({low:+.2f} to {high:+.2f}): {word}"


def interval(differences: Sequence[float], confidence: float) -> tuple[float, float]:
    """Student's, for the mean."""
    mean, n = statistics.mean(differences), len(differences)
    reach = student_t.ppf((1 + confidence) / 2, n - 1) * statistics.stdev(differences) / n**0.5
    return mean - reach, mean + reach
