"""Several methods under one protocol: the same data, splits, network and seeds, and the same steps or the same time.

A comparison is a folder: plan.json, a run folder for each method and seed, and the tables. What is done is not done
again. Several processes may work on one comparison: each takes the next run that nobody trains.
"""

import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cotrain.comparison.budget import BASELINE_METHOD, Equal, Length, Planning
from cotrain.comparison.statistics import in_words, paired, spread
from cotrain.comparison.table import Table
from cotrain.config import PER_METHOD, Config
from cotrain.data import Dataset, Split, draw_split
from cotrain.methods import METHODS, method_class
from cotrain.pipeline.fit import Job, configured, opened, trained
from cotrain.progress import clock, say
from cotrain.runs.run import Busy, Run
from cotrain.runs.tracking import has_figures
from cotrain.training.checks import check_batches, check_trainable
from cotrain.training.distributed import ALONE
from cotrain.types import UserError

LAST_EVALUATIONS = 5
AGAIN = 1_000  # from the seed of a training to that of another one on the same split

IN_PAPERS = ("kind", "lr", "momentum", "weight_decay")  # optimiser settings that a method's paper may set

WHOLE = ".lock-whole"  # held until the page is written; the run's own only while it is trained


@dataclass(frozen=True)
class Contender:
    """A method, perhaps with other settings: `fixmatch`, or `mhct:heads=5`."""

    name: str
    method: str
    settings: Mapping[str, Any]
    again: int = 0  # how many trainings on the same split are before this one

    @classmethod
    def parse(cls, text: str) -> "Contender":
        name = text.strip()
        method, *changes = name.split(":")
        pairs = [change.partition("=") for change in changes]
        for key, equals, _ in pairs:
            if not equals:
                raise UserError(f"--methods {name}: {key!r} is not KEY=VALUE, as in mhct:heads=5")
        return cls(name, method_class(method).name, {f"method.{key}": value for key, _, value in pairs})

    def config(self, base: Config) -> Config:
        """A recipe's settings of its own method hold for that method and its variants; others have their own.

        With `optim.per_method`, they also have the optimiser settings of their papers.
        """
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
class Comparison:
    folder: Path
    dataset: Dataset
    base: Config
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    equal: Equal
    minutes: float | None  # of each run, if time is equal; none: as long as the first method takes
    what: str = "methods"  # are compared
    for_all: Mapping[str, Any] = field(default_factory=dict)  # optimiser settings that the user asked for

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        folder: Path,
        contenders: Sequence[Contender],
        *,
        seeds: int,
        equal: Equal = "steps",
        minutes: float | None = None,
        config: Config | None = None,
        preset: str = "paper",
        settings: Mapping[str, Any] | None = None,
        what: str = "methods",
    ) -> "Comparison":
        """With everything checked that can be, before anything is written."""
        if seeds < 1:
            raise UserError(f"--seeds {seeds}: there must be one at least")
        if minutes is not None and (equal == "steps" or minutes <= 0):
            raise UserError("--minutes is for --equal time, and more than 0")
        changes = {**(settings or {}), "run.baseline": False}
        base = configured(dataset, config, preset, changes)
        first, optim = base.run.seed, base.optim.model_dump()
        for_all = {f"optim.{name}": optim[name] for name in IN_PAPERS if f"optim.{name}" in changes}
        named = [replace(contender, settings={**for_all, **contender.settings}) for contender in contenders]
        made = cls(folder, dataset, base, named, range(first, first + seeds), equal, minutes, what, for_all)
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

    def plan(self, console: Console) -> dict[str, Length]:
        """How long every method's runs are."""
        return self.planning.lengths(console)

    @property
    def planning(self) -> Planning:
        configs, alone = self.configs, Contender(BASELINE_METHOD, BASELINE_METHOD, self.for_all)
        return Planning(
            folder=self.folder,
            dataset=self.dataset,
            split=self.split(self.seeds[0]),
            protocol=self._protocol(),
            configs={**configs, BASELINE_METHOD: configs.get(BASELINE_METHOD, alone.config(self.base))},
            equal=self.equal,
            minutes=self.minutes,
        )

    @property
    def configs(self) -> dict[str, Config]:
        """By name of what is compared; with the recipe's steps, which equal time changes."""
        return {contender.name: contender.config(self.base) for contender in self.contenders}

    def _protocol(self) -> dict[str, dict[str, Any]]:
        """What must be the same for all runs of a comparison."""
        settings = self.base.changed({"run.seed": 0}).model_dump(exclude={"method"})
        compared = {"of": self.what, "data": self.dataset.fingerprint, "equal": self.equal, "minutes": self.minutes}
        for_all = {key: value for key, value in self.for_all.items() if self.base.optim.per_method}
        return {"comparison": compared, "for all methods": for_all, **settings}

    def train(
        self, console: Console, finished: Callable[[Mapping[str, Length]], object] = lambda plan: None
    ) -> tuple[dict[str, Length], list[str]]:
        """All runs that are not done and that nobody else trains, seed by seed; what failed, in words.

        After each run `finished` is called, so that what is there is seen before all is done.
        """
        plan, failed = self.plan(console), []
        runs = [(contender, seed) for seed in self.seeds for contender in self.contenders]
        for contender, seed in runs:
            self._begun(contender, seed, plan)
        seconds = [0.0 if self.result(*run) else plan[run[0].name].seconds for run in runs]
        done = sum(self._is_whole(*run) for run in runs)
        say(console, f"{len(runs)} runs, {done} done; about {clock(sum(seconds))} for the others -> {self.folder}")
        for number, (contender, seed) in enumerate(runs, start=1):
            if self._is_whole(contender, seed):
                continue
            title = f"{number}/{len(runs)} {contender.name}, seed {seed}"
            try:
                run = self._begun(contender, seed, plan) or self._create(contender, seed, plan)
                with run.locked(WHOLE):
                    trained(run, self.dataset, ALONE, console, part_of=Job(title, sum(seconds[number:])))
                finished(plan)
            except Busy:
                say(console, f"{title}: another process trains it")
            except UserError as error:
                say(console, f"{title}: {error}")
                failed.append(f"{contender.name}, seed {seed}: {error}")
        return plan, failed

    def _begun(self, contender: Contender, seed: int, plan: Mapping[str, Length]) -> Run | None:
        """Finished or not. Numbers of a run that was made with other settings must not stand under these."""
        folder = self.run_folder(contender, seed)
        if not (folder / "config.json").exists():
            return None
        run = Run.open(folder)
        try:
            run.check_same(self._config(contender, seed, plan), self.split(seed))
        except UserError as error:
            raise UserError(f"{error}; choose another --out") from error
        return run

    def _config(self, contender: Contender, seed: int, plan: Mapping[str, Length]) -> Config:
        changes = {"run.seed": seed + AGAIN * contender.again, "optim.steps": plan[contender.name].steps}
        return contender.config(self.base).changed(changes)

    def _create(self, contender: Contender, seed: int, plan: Mapping[str, Length]) -> Run:
        config, command = self._config(contender, seed, plan), shlex.join(sys.argv)
        return Run.create(self.run_folder(contender, seed), config, self.split(seed), command)

    def _is_whole(self, contender: Contender, seed: int) -> bool:
        """Whoever is killed after the result leaves a run without its page, or without its figures elsewhere."""
        folder, wanted = self.run_folder(contender, seed), self.base.run
        page = not wanted.report or (folder / "report.html").exists()
        figures = wanted.track != "tensorboard" or has_figures(folder)
        return self.result(contender, seed) is not None and page and figures

    def result(self, contender: Contender, seed: int) -> dict[str, Any] | None:
        folder = self.run_folder(contender, seed)
        return Run.open(folder).result if (folder / "result.json").exists() else None

    @property
    def images(self) -> str:
        """In words."""
        split = self.split(self.seeds[0])
        parts = {"labels": split.labelled, "unlabelled": split.unlabelled, "valid": split.valid}
        return ", ".join(
            [*(f"{len(rows):,} {part}" for part, rows in parts.items() if rows), f"{len(split.test):,} test images"]
        )

    @property
    def caption(self) -> str:
        """What the table is of."""
        return f"{self.dataset.name}: {self.images}; {self.base.model.backbone}; equal {self.equal}; {self.over_seeds}"

    @property
    def over_seeds(self) -> str:
        """What stands in the cells of a table."""
        if len(self.seeds) == 1:
            return in_words(self.seeds)
        return (
            f"mean ± standard deviation over {in_words(self.seeds)}; differences with Student's 95 % interval over "
            "common seeds"
        )

    def table(self, plan: Mapping[str, Length]) -> Table:
        """What is finished so far, one row a method, each against the first over the seeds that both have."""
        results = {
            contender.name: {seed: result for seed in self.seeds if (result := self.result(contender, seed))}
            for contender in self.contenders
        }
        first, last = self.contenders[0].name, f"median of last {self.base.run.test_evaluations} %"
        columns = {
            "method": [*results],
            "test error %": [spread(values(each, "test_error")) for each in results.values()],
            "n": [str(len(each)) for each in results.values()],
            last: [spread(values(each, "median_test_error")) for each in results.values()],
            f"against {first}": [
                "" if name == first else paired(by_seed(results[first], "test_error"), by_seed(each, "test_error"))
                for name, each in results.items()
            ],
            "parameters": [f"{each[min(each)]['parameters']:,}" if each else "" for each in results.values()],
            "optimiser": [config.optim.summary for config in self.configs.values()],
            f"step / {BASELINE_METHOD}": [f"{plan[name].cost:.1f}" for name in results],
            "steps": [f"{plan[name].steps:,}" for name in results],
            "time": [clock(statistics.mean(values(each, "seconds"))) if each else "" for each in results.values()],
            "ECE %": [spread(values(each, "ece")) for each in results.values()],
        }
        if not self.base.run.test_evaluations:
            del columns[last]
        return Table(columns)


def by_seed(results: Mapping[int, Mapping[str, Any]], name: str) -> dict[int, float]:
    """Of the seeds that have one, in their order."""
    return {seed: result[name] for seed, result in sorted(results.items()) if result[name] is not None}


def values(results: Mapping[int, Mapping[str, Any]], name: str) -> list[float]:
    return [*by_seed(results, name).values()]


def compare(
    data: str | Path | Dataset,
    *,
    out: str | Path | None = None,
    methods: str = "all",
    seeds: int = 3,
    equal: Equal = "steps",
    minutes: float | None = None,
    same_optimiser: bool = False,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str = "paper",
    memory: float | None = None,
    console: Console | None = None,
) -> Table:
    """Train several methods on `data` and put them side by side, in the folder `out`; what is done there stays.

    `methods` are names with commas between them, as in "mhct,fixmatch,mhct:heads=5", or "all"; the others
    are compared with the first. Seeds are counted from `run.seed`. Under the published recipes every method has the
    optimiser settings of its own paper; with `same_optimiser` all have the recipe's. The rest is as in `fit`.
    """
    console = console or Console(quiet=True)
    data = opened(data, config, settings or {}, memory, console)
    for key in settings or {}:
        if key.partition(".")[0] == "method":
            raise UserError(f"{key}: say it for the method it is of, as in --methods mhct:heads=5")
    comparison = Comparison.of(
        data,
        Path(out) if out is not None else Path("runs") / f"compare-{data.name}",
        contenders(methods),
        seeds=seeds,
        equal=equal,
        minutes=minutes,
        config=config,
        preset=preset,
        settings={
            "run.test_evaluations": LAST_EVALUATIONS,
            **({PER_METHOD: False} if same_optimiser else {}),
            **(settings or {}),
        },
    )
    plan, failed = comparison.train(console, lambda plan: comparison.table(plan).write(comparison.folder, "table"))
    table = comparison.table(plan)
    table.write(comparison.folder, "table")
    say(console, f"\n{comparison.caption}\n\n{table.text}")
    say(console, f"also as {comparison.folder / 'table'}.txt, .csv, .md and .tex")
    if failed:
        raise UserError(f"{len(failed)} runs failed; {failed[0]}; the same command tries again")
    return table
