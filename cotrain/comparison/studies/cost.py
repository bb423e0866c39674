"""The paper's cost table: parameters and time per step of one network, of three, and of one with three heads."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from rich.console import Console

from cotrain.comparison.case import differing_settings
from cotrain.comparison.race import race
from cotrain.comparison.results_table import Table
from cotrain.comparison.step_worker import Task
from cotrain.comparison.study import Study, StudyOptions
from cotrain.comparison.study_figures import times_next_to_paper
from cotrain.comparison.study_output import STUDY, StudyReport
from cotrain.config import Config, differences
from cotrain.config.recipes import recipe_named, with_preset
from cotrain.device import pick_device, pick_precision
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.networks import build_network
from cotrain.progress import counted, say
from cotrain.report.figures import PRINTED, Figure
from cotrain.runs.schema import File, Number
from cotrain.storage.reading import read_json
from cotrain.storage.writing import make_folder, write_json
from cotrain.types import UserError

MEASURED = "measured.json"
ITERATIONS = 10_000  # the paper gives minutes per so many iterations


@dataclass(frozen=True)
class Structure:
    name: str
    settings: Mapping[str, Any]
    paper_parameters: str  # millions
    paper_minutes: float


@dataclass(frozen=True)
class Network:
    name: str
    recipe: str
    classes: int
    structures: tuple[Structure, Structure, Structure]  # the other two are compared with the first


ONE = {"method.heads": 1}
THREE = {"model.share": "none"}
NETWORKS = (
    Network(
        "WRN 28-2",
        "cifar10",
        10,
        (
            Structure("original", ONE, "1.4", 30),
            Structure("three models", THREE, "4.2", 66),
            Structure("ours", {}, "3.7", 39),
        ),
    ),
    Network(
        "WRN 28-8",
        "cifar100",
        100,
        (
            Structure("original", ONE, "23.4", 136),
            Structure("three models", THREE, "70.2", 344),
            Structure("ours", {}, "19.9", 168),
        ),
    ),
)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    labelled: int  # images per step, unless a setting changes it; seven times as many are unlabelled
    turns: int


USED = {"augment", "model", "method", "optim"}  # sections with settings that affect the time of a step
FIXED = {"method", "method.heads", "optim.steps"}  # except these: they do not, or they are what is compared
USED_OF_RUN = {"run.device", "run.precision", "run.compile"}
EFFORTS = {"minutes": Effort(4, 3), "hours": Effort(16, 5), "published": Effort(64, 5)}


class CostStudy(Study):
    about = "parameters and time per step"

    def run(self, options: StudyOptions) -> StudyReport:
        if not (options.data is options.seeds is options.config is options.memory is None):
            raise UserError("study cost times steps on made-up images: it takes no data, seeds, memory or recipe")
        folder = Path(options.out or Path("runs") / f"study-cost-{options.scale}")
        return Cost(folder, EFFORTS[options.scale], options.preset, options.settings).run(options.console)


class MeasuredFile(File):
    """Seconds per step by network and structure, one value per turn."""

    protocol: dict[str, dict[str, Any]]
    seconds: dict[str, dict[str, Annotated[list[Annotated[Number, Field(gt=0)]], Field(min_length=1)]]]


def read_measured(path: Path) -> dict[str, Any]:
    content = read_json(path)
    try:
        found = MeasuredFile.model_validate(content)
        networks = {network.name: {structure.name for structure in network.structures} for network in NETWORKS}
        if any(networks.get(name) != times.keys() for name, times in found.seconds.items()):
            raise ValueError("other networks or structures")
    except ValueError as error:
        raise UserError(f"{path} is damaged; delete it to measure again") from error
    return {"protocol": found.protocol, "seconds": found.seconds}


@dataclass(frozen=True)
class Cost:
    """The study in its folder, which holds the measurements so far."""

    folder: Path
    effort: Effort
    preset: str
    changes: Mapping[str, Any]

    def config(self, network: Network, structure: Structure) -> Config:
        return self.base(network).changed(structure.settings)

    def base(self, network: Network) -> Config:
        config = with_preset(recipe_named(network.recipe), self.preset)
        config = config.changed({"optim.labelled": self.effort.labelled, **self.changes})
        return config.changed({"optim.unlabelled": config.unlabelled})

    def title(self, network: Network) -> str:
        """The paper's name for the paper's network; otherwise the backbone that is timed."""
        used = self.base(network).model.backbone
        same = used == recipe_named(network.recipe).model.backbone
        return network.name if same else f"{used}, {network.classes} classes"

    def check(self) -> None:
        self.base(NETWORKS[0])  # raises the error for an unknown setting first
        used = {key for key in self.changes if key.partition(".")[0] in USED and key not in FIXED} | USED_OF_RUN
        if unused := [key for key in self.changes if key not in used]:
            raise UserError(
                f"study cost takes no {', '.join(unused)}: it times the steps of one network, of three, and of one "
                "with three heads, on made-up images"
            )

    def run(self, console: Console) -> StudyReport:
        self.check()
        say(console, f"{self.caption} -> {self.folder}")
        seconds = self.measure(console)
        heading = f"parameters and time per step; {self.caption}"
        report = StudyReport(self.folder, "cost", heading, self.difference, table(self, seconds), figure(self, seconds))
        report.write()
        report.show(console)
        return report

    def measure(self, console: Console) -> dict[str, dict[str, list[float]]]:
        """Seconds per step by network and structure, one value per turn. Networks measured earlier are not repeated."""
        path, protocol = self.folder / MEASURED, self.protocol
        make_folder(self.folder, {MEASURED, STUDY})
        kept = read_measured(path) if path.exists() else {"protocol": protocol, "seconds": {}}
        if changed := differences(kept["protocol"], protocol):
            raise UserError(
                f"{self.folder} was measured under other settings ({'; '.join(changed)}); choose another --out"
            )
        remaining = [network for network in NETWORKS if network.name not in kept["seconds"]]
        for network in counted(remaining, len(remaining), "measuring", console):
            tasks = {
                structure.name: Task(self.config(network, structure).model_dump(), classes=network.classes)
                for structure in network.structures
            }
            timings = race(tasks, self.effort.turns)
            kept["seconds"][network.name] = {name: timing.seconds for name, timing in timings.items()}
            write_json(path, kept)
            medians = ", ".join(f"{name} {timing.median:.3g} s" for name, timing in timings.items())
            say(console, f"{self.title(network)}: {medians}")
        return kept["seconds"]

    @property
    def protocol(self) -> dict[str, dict[str, Any]]:
        """What all measurements must have in common."""
        settings = self.config(NETWORKS[0], NETWORKS[0].structures[0]).model_dump()
        device = pick_device(settings["run"]["device"])
        machine = {"device": str(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
        return {"machine": machine, "cost": {"turns": self.effort.turns}, **settings}

    @property
    def caption(self) -> str:
        config = self.config(NETWORKS[0], NETWORKS[0].structures[0])
        device = pick_device(config.run.device)
        precision = str(pick_precision(config.run.precision, device)).removeprefix("torch.")
        return (
            f"{config.optim.labelled} labelled and {config.unlabelled} unlabelled made-up 32x32 images per step; "
            f"{precision} on {device}, {torch.get_num_threads()} threads; medians of {self.effort.turns} turns"
        )

    @property
    def difference(self) -> str:
        phrases: list[str] = []
        for network in NETWORKS:
            ours, paper = self.base(network), recipe_named(network.recipe)
            reported_below = {"method.weak_pass": weak_pass(ours)}
            unused = {"run.ensemble": ours.run.ensemble}
            same = {"optim.unlabelled": paper.unlabelled, **reported_below, **unused}
            phrases += differing_settings(ours, paper.changed(same))
        phrases.append("another machine (the paper used a V100)")
        if weak_pass(self.base(NETWORKS[0])) == "separate":
            phrases.append("no gradient through the weak views (--preset code has one)")
        return f"differs from the paper: {'; '.join(dict.fromkeys(phrases))}"


def weak_pass(config: Config) -> str:
    assert isinstance(config.method, MultiHeadCoTraining)
    return config.method.weak_pass


def rows_of(seconds: Mapping[str, Mapping[str, list[float]]]) -> Iterator[tuple[Network, Structure, float, float]]:
    """Every structure with its seconds per step, and their ratio to the original's."""
    for network in NETWORKS:
        medians = {name: statistics.median(turns) for name, turns in seconds[network.name].items()}
        for structure in network.structures:
            yield network, structure, medians[structure.name], medians[structure.name] / medians["original"]


def table(cost: Cost, seconds: Mapping[str, Mapping[str, list[float]]]) -> Table:
    rows = [*rows_of(seconds)]

    def parameters(network: Network, structure: Structure) -> int:
        net = build_network(cost.config(network, structure), network.classes, channels=3)
        return sum(parameter.numel() for parameter in net.parameters())

    return Table(
        {
            "network": [cost.title(network) for network, *_ in rows],
            "structure": [structure.name for _, structure, *_ in rows],
            "parameters M": [f"{parameters(network, structure) / 1e6:.2f}" for network, structure, *_ in rows],
            "paper M": [structure.paper_parameters for _, structure, *_ in rows],
            "s / step": [f"{each:.3g}" for *_, each, _ in rows],
            "/ original": [f"{ratio:.2f}" for *_, ratio in rows],
            "paper / original": [f"{ratio:.2f}" for ratio in map(_paper_ratio, rows)],
            f"min / {ITERATIONS:,}": [f"{each * ITERATIONS / 60:,.0f}" for *_, each, _ in rows],
            "paper min": [f"{structure.paper_minutes:.0f}" for _, structure, *_ in rows],
        }
    )


def figure(cost: Cost, seconds: Mapping[str, Mapping[str, list[float]]]) -> Figure:
    ratios: dict[str, dict[str, tuple[float, float]]] = {cost.title(network): {} for network in NETWORKS}
    for row in rows_of(seconds):
        network, structure, _, ratio = row
        ratios[cost.title(network)][structure.name] = ratio, _paper_ratio(row)
    return times_next_to_paper(PRINTED, ratios)


def _paper_ratio(row: tuple[Network, Structure, float, float]) -> float:
    network, structure, *_ = row
    return structure.paper_minutes / network.structures[0].paper_minutes
