"""Compare methods under one protocol: the same data, splits, network and seeds, and the same steps or the same time.

A comparison is a folder: plan.json, a run folder for each method and seed, and the tables. Finished runs are not
repeated. Several processes can work on one comparison: each takes the next run that no other process is training.
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
from cotrain.comparison.results_table import Table
from cotrain.comparison.statistics import in_words, paired, spread
from cotrain.config import PER_METHOD, Config
from cotrain.config.defaults import configured, opened
from cotrain.data import Dataset, Split, draw_split
from cotrain.device import pick_device
from cotrain.fitting.fit import Job, trained
from cotrain.methods import METHODS, method_class
from cotrain.progress import clock, say
from cotrain.runs.result import Result
from cotrain.runs.run import Busy, Run
from cotrain.runs.tracking import has_figures
from cotrain.training.checks import check_batches, check_trainable
from cotrain.training.experiment import Experiment, Prepared
from cotrain.types import UserError

LAST_EVALUATIONS = 5
TEST_SHARE = 0.2  # of the labelled images, set aside if neither the data nor the recipe has test images
MOST_MINUTES = 1_000_000  # per run: almost two years
REPEAT_OFFSET = 1_000  # between the seeds of repeated trainings on the same split

IN_PAPERS = ("kind", "lr", "momentum", "weight_decay")  # optimiser settings that a method's paper may set

WHOLE = ".lock-whole"  # held until the report is written; the run's own lock is held only during training


@dataclass(frozen=True)
class Contender:
    """A method, optionally with changed settings: `fixmatch`, or `mhct:heads=5`."""

    name: str
    method: str
    settings: Mapping[str, Any]
    again: int = 0  # number of earlier trainings on the same split

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
        """The recipe's method settings apply to its own method and variants of it; other methods keep their defaults.

        With `optim.per_method`, other methods also use the optimiser settings of their papers.
        """
        return base.changed({"method": self.method, **self.settings})


def contenders(methods: str) -> list[Contender]:
    """Parse `a,b:key=value,c`, or `all`."""
    names = ["mhct", *(name for name in METHODS if name != "mhct")] if methods == "all" else methods.split(",")
    parsed = [Contender.parse(name) for name in names if name.strip()]
    if not parsed:
        raise UserError(f"--methods is empty; choose from: {', '.join(METHODS)}")
    for number, contender in enumerate(parsed):
        if contender in parsed[:number]:
            raise UserError(f"--methods lists {contender.name} twice")
    return parsed


@dataclass(frozen=True)
class Comparison:
    folder: Path
    dataset: Dataset
    base: Config
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    equal: Equal
    minutes: float | None  # per run, if time is equal; None: as long as the first method takes
    what: str = "methods"  # what is compared
    for_all: Mapping[str, Any] = field(default_factory=dict)  # optimiser settings that the user set, for all methods
    shared: list[Prepared] = field(default_factory=list, compare=False, repr=False)  # one per trunk

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
        """Check everything that can be checked before anything is written."""
        if seeds < 1:
            raise UserError(f"--seeds {seeds}: use at least one seed")
        if minutes is not None and (equal == "steps" or not 0 < minutes <= MOST_MINUTES):
            raise UserError(f"--minutes needs --equal time and a value above 0, of at most {MOST_MINUTES:,}")
        changes = {**(settings or {}), "run.baseline": False}
        base = configured(dataset, config, preset, changes)
        first, optim = base.run.seed, base.optim.model_dump()
        for_all = {f"optim.{name}": optim[name] for name in IN_PAPERS if f"optim.{name}" in changes}
        named = [replace(contender, settings={**for_all, **contender.settings}) for contender in contenders]
        comparison = cls(folder, dataset, base, named, range(first, first + seeds), equal, minutes, what, for_all)
        for contender in comparison.contenders:
            check_trainable(comparison.prepared(contender.config(base)))
            check_batches(contender.config(base), dataset, comparison.split(first))
        return comparison

    def prepared(self, config: Config, console: Console | None = None) -> Prepared:
        """What all runs with the same trunk share."""
        found = next((one for one in self.shared if one.serves(config)), None)
        if found is None:
            self.shared.append(found := Prepared(config, self.dataset))
        found.console = console or found.console
        return found

    def split(self, seed: int) -> Split:
        split = draw_split(self.dataset, self.base.data, seed)
        split.check_usable(self.dataset)
        return split

    def run_folder(self, contender: Contender, seed: int) -> Path:
        return self.folder / contender.name.replace(":", ",") / f"seed-{seed}"

    def plan(self, console: Console) -> dict[str, Length]:
        """The length of each method's runs."""
        return self.planning.lengths(console)

    @property
    def planning(self) -> Planning:
        configs, baseline = self.configs, Contender(BASELINE_METHOD, BASELINE_METHOD, self.for_all)
        return Planning(
            folder=self.folder,
            dataset=self.dataset,
            split=self.split(self.seeds[0]),
            protocol=self._protocol(),
            configs={**configs, BASELINE_METHOD: configs.get(BASELINE_METHOD, baseline.config(self.base))},
            equal=self.equal,
            minutes=self.minutes,
            prepared=self.prepared,
        )

    @property
    def configs(self) -> dict[str, Config]:
        """The config of each contender by name. The steps are the recipe's; equal time changes them."""
        return {contender.name: contender.config(self.base) for contender in self.contenders}

    def _protocol(self) -> dict[str, dict[str, Any]]:
        """The settings that all runs of a comparison must share."""
        settings = self.base.changed({"run.seed": 0}).model_dump(exclude={"method"})
        compared = {"of": self.what, "data": self.dataset.fingerprint, "equal": self.equal, "minutes": self.minutes}
        for_all = {key: value for key, value in self.for_all.items() if self.base.optim.per_method}
        return {"comparison": compared, "for all methods": for_all, **settings}

    def train(
        self, console: Console, finished: Callable[[Mapping[str, Length]], object] = lambda plan: None
    ) -> tuple[dict[str, Length], list[str]]:
        """Train all runs that are unfinished and that no other process is training, seed by seed. Returns the failures.

        `finished` is called after each run, to show intermediate results.
        """
        plan, failed = self.plan(console), []
        runs = [(contender, seed) for seed in self.seeds for contender in self.contenders]
        for contender, seed in runs:
            self._begun(contender, seed, plan)
        seconds = [0.0 if self.result(*run) else plan[run[0].name].seconds for run in runs]
        done = sum(self._is_whole(*run) for run in runs)
        say(console, f"{len(runs)} runs, {done} done; about {clock(sum(seconds))} for the rest -> {self.folder}")
        for number, (contender, seed) in enumerate(runs, start=1):
            if self._is_whole(contender, seed):
                continue
            title = f"{number}/{len(runs)} {contender.name}, seed {seed}"
            try:
                run = self._begun(contender, seed, plan) or self._create(contender, seed, plan)
                with run.locked(WHOLE):
                    trained(run, self._experiment(run, console), console, part_of=Job(title, sum(seconds[number:])))
                finished(plan)
            except Busy:
                say(console, f"{title}: another process is training it")
            except UserError as error:
                say(console, f"{title}: {error}")
                failed.append(f"{contender.name}, seed {seed}: {error}")
        return plan, failed

    def _begun(self, contender: Contender, seed: int, plan: Mapping[str, Length]) -> Run | None:
        """The existing run, finished or not. It must have the same settings, or the table would mix different ones."""
        folder = self.run_folder(contender, seed)
        if not (folder / "config.json").exists():
            return None
        run = Run.open(folder)
        try:
            run = run.resumed(self._config(contender, seed, plan), self.split(seed))
        except UserError as error:
            raise UserError(f"{error}; choose another --out") from error
        return run

    def _config(self, contender: Contender, seed: int, plan: Mapping[str, Length]) -> Config:
        changes = {"run.seed": seed + REPEAT_OFFSET * contender.again, "optim.steps": plan[contender.name].steps}
        return contender.config(self.base).changed(changes)

    def _create(self, contender: Contender, seed: int, plan: Mapping[str, Length]) -> Run:
        config, command = self._config(contender, seed, plan), shlex.join(sys.argv)
        return Run.create(self.run_folder(contender, seed), config, self.split(seed), command)

    def _experiment(self, run: Run, console: Console) -> Experiment:
        device, prepared = pick_device(run.config.run.device), self.prepared(run.config, console)
        return Experiment(run.config, self.dataset, run.split, device, prepared=prepared)

    def _is_whole(self, contender: Contender, seed: int) -> bool:
        """A process killed after writing the result may leave a run without its report or TensorBoard figures."""
        folder, wanted = self.run_folder(contender, seed), self.base.run
        page = not wanted.report or (folder / "report.html").exists()
        figures = wanted.track != "tensorboard" or has_figures(folder)
        return self.result(contender, seed) is not None and page and figures

    def result(self, contender: Contender, seed: int) -> Result | None:
        folder = self.run_folder(contender, seed)
        return Run.open(folder).result if (folder / "result.json").exists() else None

    @property
    def images(self) -> str:
        """How many images or rows of each kind there are."""
        split, unit = self.split(self.seeds[0]), self.dataset.unit
        parts = {"labels": split.labelled, "unlabelled": split.unlabelled, "validation": split.valid}
        return ", ".join(
            [
                *(f"{len(rows):,} {part}" for part, rows in parts.items() if rows),
                f"{len(split.test):,} test {unit.many}",
            ]
        )

    @property
    def caption(self) -> str:
        """The caption of the table."""
        return f"{self.dataset.name}: {self.images}; {self.base.model.backbone}; equal {self.equal}; {self.over_seeds}"

    @property
    def over_seeds(self) -> str:
        """What the cells of a table show."""
        if len(self.seeds) == 1:
            return in_words(self.seeds)
        return (
            f"mean ± standard deviation over {in_words(self.seeds)}; differences with Student's 95 % interval over "
            "common seeds"
        )

    def table(self, plan: Mapping[str, Length]) -> Table:
        """The results so far, one row per method, each compared with the first method over their common seeds."""
        results = {
            contender.name: {seed: result for seed in self.seeds if (result := self.result(contender, seed))}
            for contender in self.contenders
        }
        first, last = self.contenders[0].name, f"median of last {self.base.run.test_evaluations} %"
        errors = {name: by_seed(each, lambda result: result.test.error) for name, each in results.items()}
        columns = {
            "method": [*results],
            "test error %": [spread([*each.values()]) for each in errors.values()],
            "n": [str(len(each)) for each in results.values()],
            last: [spread(values(each, lambda result: result.test.median_error)) for each in results.values()],
            f"against {first}": ["" if name == first else paired(errors[first], each) for name, each in errors.items()],
            "parameters": [_parameters(each) for each in results.values()],
            "optimiser": [config.optim.summary for config in self.configs.values()],
            f"step / {BASELINE_METHOD}": [f"{plan[name].cost:.1f}" for name in results],
            "steps": [f"{plan[name].steps:,}" for name in results],
            "time": [_mean_time(each) for each in results.values()],
            "ECE %": [spread(values(each, lambda result: result.test.ece)) for each in results.values()],
        }
        if not self.base.run.test_evaluations:
            del columns[last]
        return Table(columns)


def by_seed(results: Mapping[int, Result], number: Callable[[Result], float | None]) -> dict[int, float]:
    """The numbers of the seeds that have one, in the order of the seeds."""
    numbers = {seed: number(result) for seed, result in sorted(results.items())}
    return {seed: each for seed, each in numbers.items() if each is not None}


def values(results: Mapping[int, Result], number: Callable[[Result], float | None]) -> list[float]:
    return [*by_seed(results, number).values()]


def _parameters(results: Mapping[int, Result]) -> str:
    return f"{results[min(results)].training.parameters or 0:,}" if results else ""


def _mean_time(results: Mapping[int, Result]) -> str:
    seconds = values(results, lambda result: result.training.seconds)
    return clock(statistics.mean(seconds)) if seconds else ""


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
    """Train several methods on `data` and compare them in one table. Finished runs in the folder `out` are kept.

    `methods` are comma-separated names, as in "mhct,fixmatch,mhct:heads=5", or "all"; each is compared with the first.
    Seeds count up from `run.seed`. Under the published recipes, every method uses the optimiser settings of its own
    paper; with `same_optimiser`, all use the recipe's. The other arguments are those of `fit`.
    """
    console = console or Console(quiet=True)
    data = opened(data, config, settings or {}, memory, console)
    for key in settings or {}:
        if key.partition(".")[0] == "method":
            raise UserError(f"{key}: set it for one method, as in --methods mhct:heads=5")
    changes = dict(settings or {})
    if not len(data.test) and configured(data, config, preset, changes).data.test_share == 0:
        changes.setdefault("data.test_share", TEST_SHARE)
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
            **changes,
        },
    )
    plan, failed = comparison.train(console, lambda plan: comparison.table(plan).write(comparison.folder, "table"))
    table = comparison.table(plan)
    table.write(comparison.folder, "table")
    say(console, f"\n{comparison.caption}\n\n{table.text}")
    say(console, f"also as {comparison.folder / 'table'}.txt, .csv, .md and .tex")
    if failed:
        raise UserError(f"{len(failed)} runs failed; {failed[0]}; run the same command to retry")
    return table
