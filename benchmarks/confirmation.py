"""Does the vote protect against confirmation bias? How many of the pseudo-labels that training uses are wrong.

    python -m benchmarks.confirmation cifar10.npz plantvillage --seeds 10 --out confirmation.jsonl
    python -m benchmarks.confirmation --table --figure confirmation.png --out confirmation.jsonl

Each method trains as in `benchmarks.photographs`, with 4 labels per class. The labels of the unlabelled images are
known to this script, never to training. Results are appended as they come; what is there already is not repeated.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from benchmarks.forest import TITLES
from benchmarks.photographs import CPU, by_seed, key, prepared, rows
from cotrain.comparison.claims import Claim
from cotrain.comparison.statistics import interval, spread
from cotrain.config import Config
from cotrain.data import Dataset, draw_split
from cotrain.evaluation.outputs import head_logits, score
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net
from cotrain.types import Batch, Learner, Losses, Method

LABELS = 4  # per class
PARTS = 10  # of training, over which shares are averaged
NAMES = {"fixmatch": "FixMatch", "mhct": "co-training", "mhct_graph": "co-training with neighbours"}
COLOURS = {"fixmatch": "#c4620a", "mhct": "#1f6fb2", "mhct_graph": "#2a8a4a"}


@dataclass
class Record:
    """The pseudo-labels of every step: a list of (progress, labels, used, by confidence), the first axis is heads."""

    truth: Tensor  # (images,) -1 for images that have a label in training
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add(self, drawn: Tensor, labels: Tensor, used: Tensor, likeliest: Tensor) -> None:
        unlabelled = self.truth[drawn] >= 0
        self.steps.append((drawn[unlabelled], *(each[:, unlabelled] for each in (labels, used, likeliest))))

    def shares(self, steps: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> list[float | None]:
        """In percent: images used, wrong labels among these, and wrong labels among as many of the most confident."""
        used = torch.cat([one[2].flatten() for one in steps])
        wrong = torch.cat([(one[1] != self.truth[one[0]]).flatten() for one in steps])
        by_confidence = torch.cat([(one[3] != self.truth[one[0]])[one[3] >= 0] for one in steps])
        return [percent(each) for each in (used, wrong[used], by_confidence)]

    @property
    def kept_wrong(self) -> float | None:
        """Percent of the wrong labels of the first half that were used again when the image was last drawn."""
        half, heads = len(self.steps) // 2, len(self.steps[0][1])
        latest = torch.full((2, heads, len(self.truth)), -1)
        for number, (drawn, labels, used, _) in enumerate(self.steps):
            latest[int(number >= half)][:, drawn] = torch.where(used, labels, -2)
        first, second = latest
        counted = (first >= 0) & (first != self.truth) & (second != -1)
        return percent((first == second)[counted])


def percent(values: Tensor) -> float | None:
    """How many are true; None if there are no values."""
    return round(100 * values.double().mean().item(), 3) if len(values) else None


def watched(method: Method, record: Record) -> Method:
    """The same method, which also records the pseudo-labels that it uses."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    class Watched(type(method)):  # type: ignore[misc]
        def pseudo_label(self, weak: Tensor) -> tuple[Tensor, Tensor]:
            labels, used = super().pseudo_label(weak)
            heads = (-1, labels.shape[-1])
            found[:] = [(labels.reshape(heads), used.reshape(heads), most_confident(weak, used.reshape(heads)))]
            return labels, used

        def loss(self, learner: Learner, batch: Batch) -> Losses:
            losses = super().loss(learner, batch)
            record.add(batch.unlabelled_rows, *found[0])
            return losses

    return Watched(**dict(method))


def most_confident(weak: Tensor, used: Tensor) -> Tensor:
    """(M, U) the class that the other heads together find likeliest, for as many images as are used; -1 elsewhere."""
    probabilities = weak.float().softmax(dim=-1).reshape(len(used), *weak.shape[-2:])
    others = (probabilities.sum(dim=0) - probabilities) if len(used) > 1 else probabilities
    confidence, likeliest = others.max(dim=-1)
    place = confidence.argsort(dim=1, descending=True).argsort(dim=1)
    return torch.where(place < used.sum(dim=1, keepdim=True), likeliest, -1)


def trial(dataset: Dataset, base: Config, seed: int, method: str) -> dict[str, Any]:
    config = base.changed({"data.labels": LABELS * len(dataset.classes), "run.seed": seed, "method": method})
    split = draw_split(dataset, config.data, seed)
    truth = dataset.labels.clone()
    truth[list(split.labelled)] = -1
    record = Record(truth)
    experiment = Experiment(config.model_copy(update={"method": watched(config.method, record)}), dataset, split, CPU)
    net = trained_net(experiment)
    tested = np.asarray(split.test)
    logits = head_logits(net, experiment.inputs, tested)
    parts = [
        record.shares([record.steps[step] for step in part]) for part in np.array_split(range(len(record.steps)), PARTS)
    ]
    names = ("used", "wrong", "wrong_by_confidence")
    whole = dict(zip(names, record.shares(record.steps), strict=True))
    return {
        "seed": seed,
        "method": method,
        "error": round(score(logits, dataset.labels[tested], config.run.ensemble).error, 3),
        **whole,
        "kept_wrong": record.kept_wrong,
        "over_training": {name: [part[place] for part in parts] for place, name in enumerate(names)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("confirmation.jsonl"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", nargs="*", choices=[*NAMES], default=[*NAMES])
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in fit; use a file of its own")
    parser.add_argument("--table", action="store_true", help="print the table only")
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    done = {key(row) for row in rows(asked.out)}
    changes = dict(change.split("=", 1) for change in asked.set)
    for source in [] if asked.table else asked.data:
        name, dataset, base = Path(source).stem, None, None
        for seed in range(asked.seeds):
            for method in asked.methods:
                if (name, LABELS, seed, method) in done:
                    continue
                if dataset is None or base is None:
                    dataset, base = prepared(source, changes, Console())
                row = {"data": name, "labels": LABELS, **trial(dataset, base, seed, method)}
                with open(asked.out, "a") as file:
                    file.write(json.dumps(row) + "\n")
                print({name: value for name, value in row.items() if name != "over_training"}, flush=True)
    found = [*rows(asked.out)]
    print(table(found))
    if asked.figure:
        draw(found).savefig(asked.figure, dpi=110)


def values(found: Sequence[dict[str, Any]], data: str, method: str, what: str) -> dict[int, float]:
    return by_seed([{**row, "error": row[what]} for row in found if row[what] is not None], data, LABELS, method)


def table(found: Sequence[dict[str, Any]]) -> str:
    columns = {
        "used %": "used",
        "wrong of these %": "wrong",
        "wrong if as many were chosen by confidence %": "wrong_by_confidence",
        "wrong ones that stayed %": "kept_wrong",
        "test error %": "error",
    }
    lines = [f"| data | method | {' | '.join(columns)} | n |", "|---" * (len(columns) + 3) + "|"]
    claims = []
    for data in dict.fromkeys(row["data"] for row in found):
        for method, title in NAMES.items():
            each = {what: values(found, data, method, what) for what in columns.values()}
            if not each["error"]:
                continue
            cells = " | ".join(spread([*one.values()]) for one in each.values())
            lines.append(f"| {TITLES.get(data, data)} | {title} | {cells} | {len(each['wrong'])} |")
        wrong = {method: values(found, data, method, "wrong") for method in NAMES}
        kept = {method: values(found, data, method, "kept_wrong") for method in NAMES}
        where = TITLES.get(data, data)
        claims += [
            Claim(
                f"{where}: fewer of co-training's pseudo-labels are wrong than of FixMatch's",
                wrong["mhct"],
                wrong["fixmatch"],
            ),
            Claim(
                f"{where}: fewer of co-training's wrong pseudo-labels stay than of FixMatch's",
                kept["mhct"],
                kept["fixmatch"],
            ),
            Claim(
                f"{where}: the vote chooses better than the same heads' confidence",
                wrong["mhct"],
                values(found, data, "mhct", "wrong_by_confidence"),
            ),
        ]
    return "\n".join([*lines, "", *(f"- {claim.sentence}" for claim in claims)])


def draw(found: Sequence[dict[str, Any]]) -> Figure:
    """For each data set, the share of wrong pseudo-labels over training, and below it the share of images used."""
    sets = [*dict.fromkeys(row["data"] for row in found)]
    figure = Figure(figsize=(4.6 * len(sets), 5.2), layout="constrained")
    panels = figure.subplots(2, len(sets), sharex=True, sharey="row", squeeze=False)
    for column, data in enumerate(sets):
        for axes, what in zip(panels[:, column], ("wrong", "used"), strict=True):
            for method in NAMES:
                draw_curves(
                    axes,
                    [r["over_training"][what] for r in found if (r["data"], r["method"]) == (data, method)],
                    method,
                )
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.25)
        panels[0, column].set_title(TITLES.get(data, data))
        panels[1, column].set_xlabel("progress of training (%)")
    panels[0, 0].set_ylabel("wrong (% of those used)")
    panels[1, 0].set_ylabel("used (% of images)")
    panels[0, 0].legend(fontsize="small")
    figure.suptitle("Pseudo-labels in training")
    return figure


def draw_curves(axes: Axes, curves: Sequence[Sequence[float | None]], method: str) -> None:
    """Mean over seeds with its 95 % interval, where at least half of the seeds have a value."""
    by_part = {
        100 * (place + 0.5) / PARTS: known
        for place, part in enumerate(zip(*curves, strict=True))
        if len(known := [value for value in part if value is not None]) > max(1, len(curves) / 2)
    }
    if not by_part:
        return
    middle, bands = [*by_part], [interval(part, 0.95) for part in by_part.values()]
    axes.plot(middle, [statistics.mean(part) for part in by_part.values()], color=COLOURS[method], label=NAMES[method])
    axes.fill_between(middle, *zip(*bands, strict=True), color=COLOURS[method], alpha=0.18, linewidth=0)


if __name__ == "__main__":
    main()
