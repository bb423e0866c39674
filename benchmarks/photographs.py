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
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from cotrain.comparison.claims import VERDICTS, Claim
from cotrain.comparison.statistics import ENOUGH_SEEDS, clear_sign, interval
from cotrain.config import Config
from cotrain.config.defaults import configured, opened
from cotrain.data import Dataset, draw_split
from cotrain.evaluation.outputs import head_logits, score
from cotrain.fitting.baseline import logistic_net
from cotrain.methods import METHODS
from cotrain.training.experiment import Experiment, Prepared
from cotrain.training.loop import trained_net

LOGISTIC, OURS = "logistic_regression", "mhct_graph"
MAIN = (LOGISTIC, "supervised", OURS, "mhct", "fixmatch", "laplacenet")
OTHERS = tuple(name for name in METHODS if name not in MAIN and METHODS[name]().views.ctaugment == "none")
NOT_MIRRORED = ("svhn",)
DEVELOPMENT = 10  # the first seed of experiments that choose a default
CPU = torch.device("cpu")
TITLES = {"cifar10": "CIFAR-10", "plantvillage": "PlantVillage", "cifar100": "CIFAR-100", "svhn": "SVHN"}
NAMES = {
    OURS: "co-training with neighbours (`mhct_graph`)",
    LOGISTIC: "logistic regression",
    "supervised": "labelled-only heads",
    "mhct": "co-training without a graph",
    "mhct_routed": "routed co-training",
    "three_models": "three models",
    "fixmatch": "FixMatch",
    "laplacenet": "LaplaceNet",
    "mean_teacher": "Mean Teacher",
    "uda": "UDA",
    "vat": "VAT",
    "ict": "ICT",
    "temporal_ensembling": "Temporal Ensembling",
    "pseudo_label": "Pseudo-Label",
    "pseudo_label_arazo": "Arazo's pseudo-labels",
    "deep_cotraining": "Deep Co-Training",
    "comatch": "CoMatch",
    "pi_model": "Pi-Model",
    "mixmatch": "MixMatch",
    "trinet": "Tri-net",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("photographs.jsonl"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--labels", type=int, nargs="*", default=[4, 25], help="per class")
    parser.add_argument("--methods", nargs="*", default=[*MAIN, *OTHERS], help="all that can work on features")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as in fit; use a file of its own")
    parser.add_argument("--develop", action="store_true", help="seeds from 10 on, measured on unlabelled images")
    parser.add_argument("--table", action="store_true", help="print the table only")
    parser.add_argument("--against", type=Path, help="also print how each method differs from its runs in this file")
    asked = parser.parse_args()
    console = Console()
    if not asked.table:
        changes = dict(change.split("=", 1) for change in asked.set)
        done = {key(row) for row in rows(asked.out)}
        first = DEVELOPMENT if asked.develop else 0
        jobs = [
            (source, labels, seed, method)
            for labels in asked.labels
            for method in asked.methods
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
    print(tables([*rows(asked.out)]))
    if asked.against is not None:
        print(effects([*rows(asked.against)], [*rows(asked.out)]))


def prepared(source: str, changes: dict[str, str], console: Console) -> tuple[Dataset, Config]:
    name = Path(source).stem
    settings = {"augment.flip": name not in NOT_MIRRORED, **changes}
    dataset = opened(source, None, settings, None, console)
    config = configured(dataset, None, "paper", settings)
    if not len(dataset.test):
        config = config.changed({"data.test_share": 0.3})
    return Prepared(config, dataset, console=console).with_bank(dataset), config


def trial(dataset: Dataset, base: Config, labels: int, seed: int, method: str, *, on_test: bool) -> dict[str, Any]:
    config = base.changed({"data.labels": labels * len(dataset.classes), "run.seed": seed})
    split = draw_split(dataset, config.data, seed)
    began = time.monotonic()
    if method == LOGISTIC:
        experiment = Experiment(config, dataset, split, CPU)
        net = logistic_net(experiment)
    else:
        config = config.changed({"method": method})
        experiment = Experiment(config, dataset, split, CPU)
        net = trained_net(experiment)
    seconds = time.monotonic() - began
    rows = np.asarray(split.test) if on_test else np.setdiff1d(split.unlabelled, split.labelled)
    logits = head_logits(net, experiment.inputs, rows)
    error = score(logits, dataset.labels[rows], config.run.ensemble).error
    return {"seed": seed, "method": method, "error": round(error, 3), "images": len(rows), "seconds": round(seconds, 1)}


def rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def key(row: dict[str, Any]) -> tuple[str, int, int, str]:
    return row["data"], row["labels"], row["seed"], row["method"]


def tables(found: list[dict[str, Any]]) -> str:
    """Per number of labels: errors, and differences to co-training paired by seed."""
    parts = []
    for labels in sorted({row["labels"] for row in found}):
        here = [row for row in found if row["labels"] == labels]
        methods, sets = named(here)
        errors = {(data, method): by_seed(here, data, labels, method) for data in sets for method in methods}
        means = [[NAMES[method], *(shown_error(errors[data, method]) for data in sets)] for method in methods]
        differences = [
            [
                NAMES[method],
                *(shown_difference(errors[data, OURS], errors[data, method]) for data in sets),
                verdicts([Claim("", errors[data, OURS], errors[data, method]) for data in sets]),
            ]
            for method in methods
            if method != OURS
        ]
        titles = [TITLES[data] for data in sets]
        parts += [
            f"**{labels} per class: test error, %**",
            markdown(["method", *titles], means),
            f"**{labels} per class: difference to {OURS}, points**",
            markdown(["method", *titles, "co-training is better"], differences),
        ]
    return "\n\n".join(parts)


def effects(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """Per number of labels: what other settings change, paired by seed."""
    parts = []
    for labels in sorted({row["labels"] for row in after}):
        methods, sets = named([row for row in after if row["labels"] == labels])
        body = []
        for method in methods:
            pairs = [[by_seed(runs, data, labels, method) for runs in (before, after)] for data in sets]
            body.append([NAMES[method], *(shown_difference(*pair) for pair in pairs)])
        table = markdown(["method", *(TITLES[data] for data in sets)], body)
        parts += ["", f"**{labels} per class: difference, points**", "", table]
    return "\n".join(parts)


def named(found: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The methods and the data sets of some runs, in order."""
    methods = sorted({row["method"] for row in found}, key=lambda name: ([*MAIN, *OTHERS, name]).index(name))
    return methods, [data for data in TITLES if any(row["data"] == data for row in found)]


def markdown(head: list[str], body: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *body])


def shown_error(errors: Mapping[int, float]) -> str:
    if not errors:
        return "-"
    spread = f" ± {statistics.stdev(errors.values()):.1f}" if len(errors) > 1 else ""
    return f"{statistics.mean(errors.values()):.1f}{spread} (n = {len(errors)})"


def shown_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Bold if the method is clearly better than co-training, plain if it is clearly worse, otherwise in brackets."""
    found = [theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if len(found) < ENOUGH_SEEDS:
        return "-"
    low, high = interval(found, 0.95)
    cell = f"{statistics.mean(found):+.1f}, {low:+.1f} to {high:+.1f}"
    return {-1: f"**{cell}**", 0: f"({cell})", 1: cell}[clear_sign(found)]


def verdicts(claims: list[Claim]) -> str:
    """On how many sets the claim agrees with the runs."""
    counted = Counter(claim.verdict for claim in claims if claim.differences)
    return ", ".join(f"{word} ({counted[word]})" for word in VERDICTS.values() if counted[word])


def by_seed(found: list[dict[str, Any]], data: str, labels: int, method: str) -> dict[int, float]:
    return {row["seed"]: row["error"] for row in found if key(row) == (data, labels, row["seed"], method)}


if __name__ == "__main__":
    main()
