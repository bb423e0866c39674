"""The paper's table of cost: parameters and time of a step with one network, three, and one of three heads."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cotrain.bench.race import race
from cotrain.bench.worker import Task
from cotrain.checkpoint import make_folder, read_json, write_json
from cotrain.config import Config, differences
from cotrain.device import pick_device, pick_precision
from cotrain.figures import PRINTED, Figure
from cotrain.progress import counted, say
from cotrain.recipes import as_released, recipe_named
from cotrain.studies.figures import times_beside_papers
from cotrain.studies.writing import Written
from cotrain.table import Table
from cotrain.train import build_network
from cotrain.types import UserError

ITERATIONS = 10_000  # that the paper's minutes are of


@dataclass(frozen=True)
class Structure:
    name: str
    settings: Mapping[str, Any]
    papers_parameters: str  # millions
    papers_minutes: float


@dataclass(frozen=True)
class Network:
    name: str
    recipe: str
    classes: int
    structures: tuple[Structure, Structure, Structure]  # the others are compared with the first


ONE = {"method.heads": 1, "model.last_width": None}
THREE = {"model.share": "none", "model.last_width": None}
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

    labelled: int  # images a step; seven times as many unlabelled ones
    turns: int


EFFORTS = {"minutes": Effort(4, 3), "hours": Effort(16, 5), "published": Effort(64, 5)}


@dataclass(frozen=True)
class Cost:
    """A folder with what was measured so far."""

    folder: Path
    effort: Effort
    preset: str
    changes: Mapping[str, Any]

    def config(self, network: Network, structure: Structure) -> Config:
        config = recipe_named(network.recipe)
        batch = {"optim.labelled": self.effort.labelled, "optim.unlabelled": 7 * self.effort.labelled}
        config = (as_released(config) if self.preset == "code" else config).changed({**batch, **self.changes})
        return config.changed(structure.settings)

    def run(self, console: Console) -> Written:
        say(console, f"{self.caption} -> {self.folder}")
        seconds = self.measure(console)
        heading = f"parameters and time of a step; {self.caption}"
        written = Written(self.folder, "cost", heading, self.difference, table(self, seconds), figure(seconds))
        written.write()
        written.say(console)
        return written

    def measure(self, console: Console) -> dict[str, dict[str, list[float]]]:
        """Seconds of a step by network and structure, in each turn; a network that was measured is not again."""
        path, protocol = self.folder / "measured.json", self.protocol
        make_folder(self.folder)
        kept = read_json(path) if path.exists() else {"protocol": protocol, "seconds": {}}
        if not isinstance(kept, dict) or not {"protocol", "seconds"} <= kept.keys():
            raise UserError(f"{path} is damaged; delete it to measure anew")
        if changed := differences(kept["protocol"], protocol):
            raise UserError(f"{self.folder} was measured otherwise ({'; '.join(changed)}); choose another --out")
        left = [network for network in NETWORKS if network.name not in kept["seconds"]]
        for network in counted(left, len(left), "measuring", console):
            tasks = {
                structure.name: Task(self.config(network, structure).model_dump(), classes=network.classes)
                for structure in network.structures
            }
            timings = race(tasks, self.effort.turns)
            kept["seconds"][network.name] = {name: timing.seconds for name, timing in timings.items()}
            write_json(path, kept)
            say(
                console,
                f"{network.name}: {', '.join(f'{name} {timing.median:.3g} s' for name, timing in timings.items())}",
            )
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
            f"{config.optim.labelled} labelled and {config.unlabelled} unlabelled made-up images of 32x32 a step; "
            f"{precision} on {device}, {torch.get_num_threads()} threads; medians of {self.effort.turns} turns"
        )

    @property
    def difference(self) -> str:
        theirs = recipe_named("cifar10").optim.labelled
        batch = "" if self.effort.labelled == theirs else f"batches of {self.effort.labelled}, not {theirs}; "
        return (
            f"not as in the paper: {batch}another machine (the paper's had a V100), and our step, whose weak views go "
            "through the network without a gradient (--preset code: with one)"
        )


def rows_of(seconds: Mapping[str, Mapping[str, list[float]]]) -> Iterator[tuple[Network, Structure, float, float]]:
    """Every structure with its seconds a step, and how many times the original's that is."""
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
            "network": [network.name for network, *_ in rows],
            "structure": [structure.name for _, structure, *_ in rows],
            "parameters M": [f"{parameters(network, structure) / 1e6:.2f}" for network, structure, *_ in rows],
            "paper": [structure.papers_parameters for _, structure, *_ in rows],
            "s / step": [f"{each:.3g}" for *_, each, _ in rows],
            "/ original": [f"{ratio:.2f}" for *_, ratio in rows],
            "paper's": [f"{ratio:.2f}" for ratio in map(_papers_ratio, rows)],
            f"min / {ITERATIONS:,}": [f"{each * ITERATIONS / 60:,.0f}" for *_, each, _ in rows],
            "paper's min": [f"{structure.papers_minutes:.0f}" for _, structure, *_ in rows],
        }
    )


def figure(seconds: Mapping[str, Mapping[str, list[float]]]) -> Figure:
    ratios: dict[str, dict[str, tuple[float, float]]] = {network.name: {} for network in NETWORKS}
    for row in rows_of(seconds):
        network, structure, _, ratio = row
        ratios[network.name][structure.name] = ratio, _papers_ratio(row)
    return times_beside_papers(PRINTED, ratios)


def _papers_ratio(row: tuple[Network, Structure, float, float]) -> float:
    network, structure, *_ = row
    return structure.papers_minutes / network.structures[0].papers_minutes
