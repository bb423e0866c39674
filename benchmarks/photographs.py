"""Few labels on photographs: co-training on the features of a pretrained trunk, against what else one could do.

    python -m benchmarks.photographs --out photographs.jsonl cifar10.npz cifar100.npz svhn.npz plantvillage

For every data set, number of labels per class and seed, each method trains once under the recipe `photos`, on the same
bank and the same split, and is tested once on the test images (a folder without any sets 0.3 of its images aside).
Results are appended to a file as they come; what is there already is not repeated. `--table` prints them as Markdown.

To choose a default, measure on other seeds and on the unlabelled training images, never on the test images:

    python -m benchmarks.photographs cifar10.npz --develop --methods mhct_graph --set method.rounds=1 --out one.jsonl
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from cotrain.comparison.statistics import paired, spread
from cotrain.config import Config
from cotrain.data import Dataset, draw_split
from cotrain.evaluation.outputs import head_logits, score
from cotrain.methods import METHODS
from cotrain.pipeline.baseline import logistic_net
from cotrain.pipeline.features import with_bank
from cotrain.pipeline.fit import configured, opened
from cotrain.training.loop import trained_net
from cotrain.training.state import inputs_of

LOGISTIC, OURS = "logistic_regression", "mhct_graph"
ALWAYS = (LOGISTIC, "supervised", OURS, "mhct", "fixmatch", "laplacenet")
AT_FOUR = tuple(name for name in METHODS if name not in ALWAYS and METHODS[name]().views.ctaugment == "none")
NOT_MIRRORED = ("svhn",)
DEVELOPMENT = 10  # the first seed of experiments that choose a default
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("photographs.jsonl"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--labels", type=int, nargs="*", default=[4, 1, 25], help="per class")
    parser.add_argument("--methods", nargs="*", help="by default the six main ones, and all others at 4 labels")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in fit; use a file of its own")
    parser.add_argument("--develop", action="store_true", help="seeds from 10 on, measured on unlabelled images")
    parser.add_argument("--table", action="store_true", help="print the table only")
    asked = parser.parse_args()
    console = Console()
    if not asked.table:
        changes = dict(change.split("=", 1) for change in asked.set)
        done = {key(row) for row in rows(asked.out)}
        plan = [(labels, method) for labels in asked.labels for method in asked.methods or ALWAYS]
        plan += [] if asked.methods else [(4, method) for method in AT_FOUR]
        first = DEVELOPMENT if asked.develop else 0
        jobs = [
            (source, labels, seed, method)
            for labels, method in plan
            for source in asked.data
            for seed in range(first, first + asked.seeds)
        ]
        datasets: dict[str, tuple[Dataset, Config]] = {}
        for source, labels, seed, method in jobs:
            if (Path(source).stem, labels, seed, method) in done:
                continue
            if source not in datasets:
                datasets[source] = prepared(source, changes, console)
            row = trial(*datasets[source], labels, seed, method, on_test=not asked.develop)
            with open(asked.out, "a") as file:
                file.write(json.dumps({"data": Path(source).stem, "labels": labels, **row}) + "\n")
            print(Path(source).stem, labels, seed, method, row["error"], row["seconds"], flush=True)
    print(table([*rows(asked.out)]))


def prepared(source: str, changes: dict[str, str], console: Console) -> tuple[Dataset, Config]:
    name = Path(source).stem
    settings = {"augment.flip": name not in NOT_MIRRORED, **changes}
    dataset = opened(source, None, settings, None, console)
    config = configured(dataset, None, "paper", settings)
    if not len(dataset.test):
        config = config.changed({"data.test_share": 0.3})
    return with_bank(dataset, config, console), config


def trial(dataset: Dataset, base: Config, labels: int, seed: int, method: str, *, on_test: bool) -> dict[str, Any]:
    config = base.changed({"data.labels": labels * len(dataset.classes), "run.seed": seed})
    split = draw_split(dataset, config.data, seed)
    began = time.monotonic()
    if method == LOGISTIC:
        net = logistic_net(config, dataset, split)
    else:
        config = config.changed({"method": method})
        net = trained_net(config, dataset, split, CPU)
    seconds = time.monotonic() - began
    rows = np.asarray(split.test) if on_test else np.setdiff1d(split.unlabelled, split.labelled)
    logits = head_logits(net, inputs_of(config, dataset, split), rows)
    error = score(logits, dataset.labels[rows], config.run.ensemble).error
    return {"seed": seed, "method": method, "error": round(error, 3), "images": len(rows), "seconds": round(seconds, 1)}


def rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def key(row: dict[str, Any]) -> tuple[str, int, int, str]:
    return row["data"], row["labels"], row["seed"], row["method"]


def table(found: list[dict[str, Any]]) -> str:
    """Mean and standard deviation over seeds, and the paired difference to logistic regression."""
    columns = sorted({(row["labels"], row["data"]) for row in found})
    methods = sorted({row["method"] for row in found}, key=lambda name: ([*ALWAYS, *AT_FOUR, name]).index(name))
    lines = ["| method | " + " | ".join(f"{data}, {labels}" for labels, data in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for method in methods:
        cells = []
        for labels, data in columns:
            errors, reference = (by_seed(found, data, labels, name) for name in (method, OURS))
            difference = paired(reference, errors) if method != OURS and errors and reference else ""
            cells.append(f"{spread([*errors.values()])} (n={len(errors)}) {difference}" if errors else "")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    for labels in sorted({row["labels"] for row in found}):
        ratios = [
            np.mean([*by_seed(found, data, labels, OURS).values()])
            / np.mean([*by_seed(found, data, labels, LOGISTIC).values()])
            for each, data in columns
            if each == labels and by_seed(found, data, labels, OURS) and by_seed(found, data, labels, LOGISTIC)
        ]
        if ratios:
            lines.append(
                f"\n{labels} labels per class: {OURS} has {np.mean(ratios):.2f} of {LOGISTIC}'s error on average"
            )
    return "\n".join(lines)


def by_seed(found: list[dict[str, Any]], data: str, labels: int, method: str) -> dict[int, float]:
    return {row["seed"]: row["error"] for row in found if key(row) == (data, labels, row["seed"], method)}


if __name__ == "__main__":
    main()
