"""A simulated person who always answers right: the error against the number of labels, by the order of the questions.

    python -m benchmarks.labelling cifar10.npz svhn.npz plantvillage --out labelling.jsonl
    python -m benchmarks.labelling cifar10.npz svhn.npz plantvillage --most 100 --finished 5 --out labelling.jsonl
    python -m benchmarks.labelling --table --out labelling.jsonl
    python -m benchmarks.labelling --figure labelling.png --out labelling.jsonl

The person labels images in our order or in random order. After each round the heads train as on the page of `cotrain
label`, and the rest of the order follows. The same labels also go to logistic regression on the same features, which
uses no unlabelled images. Errors are those on held-out test images (a folder without any sets 0.3 of each class aside);
`--pool` measures on the unlabelled training images instead, for choosing between orders. Results are appended as they
come; a sequence that was interrupted is repeated from its start, and nothing is written twice.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cotrain.comparison.statistics import paired, spread
from cotrain.config import Config
from cotrain.config.defaults import configured, opened
from cotrain.data import Dataset
from cotrain.evaluation.outputs import head_logits
from cotrain.fitting.baseline import logistic_net
from cotrain.labelling.learning import CPU, Known, PageModel, Snapshot
from cotrain.ops import ensemble_probabilities
from cotrain.training.experiment import Experiment, Prepared
from cotrain.training.loop import trained_net

ROUNDS = (10, 20, 40, 60, 80, 100, 150, 200)  # labels after which the heads train
ESTIMATED = (60, 100, 200)  # labels after which the estimates of the page are compared with the truth
FINISHED = (40, 100)  # labels after which Finish trains too
ORDERS = ("informative", "random")
NAMES = {"informative": "our order", "random": "random order"}
NOT_MIRRORED = ("svhn",)
GOAL = 100  # labels in random order, whose error is to be reached with fewer

Rows = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("labelling.jsonl"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="development uses others than those of the tables")
    parser.add_argument("--estimates", type=int, default=2, help="seeds for which the page's estimates are checked")
    parser.add_argument("--finished", type=int, default=0, help="seeds for which Finish trains too")
    parser.add_argument("--most", type=int, default=ROUNDS[-1], help="labels at which a sequence ends")
    parser.add_argument("--images", type=int, default=3000, help="training images, at most")
    parser.add_argument("--pool", action="store_true", help="measure on the unlabelled training images")
    parser.add_argument("--table", action="store_true", help="print the tables only")
    parser.add_argument("--figure", type=Path, help="draw the figure only")
    asked = parser.parse_args()
    if not asked.table and asked.figure is None:
        for source in asked.data:
            dataset, config = prepared(source, asked.images)
            for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
                for order in ORDERS:
                    simulate(dataset, config, Path(source).stem, seed, order, asked)
    found = rows(asked.out)
    if asked.figure is not None:
        draw(found, asked.figure)
    else:
        print(table(found))


def prepared(source: str, most: int) -> tuple[Dataset, Config]:
    """The same training and test images for all seeds: a seed draws the order, the initial weights and the batches."""
    settings = {"augment.flip": Path(source).stem not in NOT_MIRRORED}
    dataset = opened(source, None, settings, None, Console())
    rng, labels = np.random.default_rng(0), dataset.labels.numpy()
    if not len(dataset.test):
        members = [rng.permutation(np.flatnonzero(labels == index)) for index in range(len(dataset.classes))]
        test = np.sort(np.concatenate([each[: round(0.3 * len(each))] for each in members]))
        dataset = replace(dataset, train=np.setdiff1d(dataset.train, test), test=test)
    if len(dataset.train) > most:
        dataset = replace(dataset, train=np.sort(dataset.train[rng.permutation(len(dataset.train))[:most]]))
    config = configured(dataset, None, "paper", settings)
    return Prepared(config, dataset, console=Console()).with_bank(dataset), config


def simulate(dataset: Dataset, config: Config, name: str, seed: int, order: str, asked: argparse.Namespace) -> None:
    """One person labels images; what is in the file already is not written again."""
    done = {row["labels"] for row in rows(asked.out) if (row["data"], row["seed"], row["order"]) == (name, seed, order)}
    rounds = [goal for goal in ROUNDS if goal <= asked.most]
    if done >= set(rounds):
        return
    page_model, truth = PageModel(Prepared(config, dataset), seed), dataset.labels.numpy()
    given: dict[int, int] = {}
    snapshot: Snapshot | None = None
    for goal in rounds:
        known = Known(dict(enumerate(dataset.classes)), given)
        for row in page_model.next(snapshot, known, frozenset(), goal - len(given), order):  # type: ignore[arg-type]
            given[row] = int(truth[row])
        known, began, spent = (
            Known(dict(enumerate(dataset.classes)), dict(given)),
            time.monotonic(),
            time.process_time(),
        )
        snapshot = page_model.train(known, snapshot)
        if goal in done or snapshot is None:
            continue
        tested = np.setdiff1d(dataset.train, [*given]) if asked.pool else dataset.test
        measured = {
            "data": name,
            "seed": seed,
            "order": order,
            "labels": goal,
            "test": len(tested),
            "error": wrong(snapshot.probabilities[tested].argmax(axis=1), truth[tested]),
            "without": wrong(logistic(page_model, known, tested), truth[tested]),
            "classes": len(set(given.values())),
            "seconds": round(time.monotonic() - began, 2),
            "cpu_seconds": round(time.process_time() - spent, 2),
        }
        if seed < asked.first_seed + asked.estimates and goal in ESTIMATED:
            *_, found = page_model.estimate(known, snapshot)
            assert found is not None and found.point is not None
            point = found.point
            measured |= {"estimate": [point.error, point.low, point.high], "advice": found.advice}
        if seed < asked.first_seed + asked.finished and goal in FINISHED:
            measured["finished"] = wrong(finished(page_model, config, known, tested), truth[tested])
        with open(asked.out, "a") as file:
            file.write(json.dumps(measured) + "\n")
        print(name, seed, order, goal, measured["error"], measured["without"], flush=True)


def logistic(page_model: PageModel, known: Known, tested: NDArray[np.int64]) -> NDArray[np.int64]:
    """The classes that logistic regression predicts from the same labels."""
    data = page_model.training_set(known)
    experiment = Experiment(page_model.config, data.dataset, data.split, CPU, prepared=page_model.prepared)
    logits = head_logits(logistic_net(experiment), experiment.inputs, tested)
    return data.numbers[logits[0].argmax(dim=-1).numpy()]


def finished(page_model: PageModel, config: Config, known: Known, tested: NDArray[np.int64]) -> NDArray[np.int64]:
    """The classes that the model of `Finish` predicts: the usual training instead of the quick one."""
    data, config = page_model.training_set(known), config.changed({"run.seed": page_model.seed})
    experiment = Experiment(config, data.dataset, data.split, CPU, prepared=page_model.prepared)
    logits = head_logits(trained_net(experiment), experiment.inputs, tested)
    return data.numbers[ensemble_probabilities(logits, config.run.ensemble).argmax(dim=-1).numpy()]


def wrong(predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    return round(100 * float((predicted != truth).mean()), 3)


def rows(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def errors(found: Rows, data: str, order: str, labels: int, which: str) -> dict[int, float]:
    """By seed."""
    key = (data, order, labels)
    return {row["seed"]: row[which] for row in found if (row["data"], row["order"], row["labels"]) == key}


WAYS = [(order, which) for which in ("error", "without") for order in ORDERS]


def table(found: Rows) -> str:
    """Mean and standard deviation over seeds, and the labels needed for random order's error."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in found):
        titles = ["labels", *(title(*way) for way in WAYS), "our order - random order, co-training"]
        lines += [f"\n{data}\n", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for labels in ROUNDS:
            cells = [errors(found, data, order, labels, which) for order, which in WAYS]
            written = [f"{spread([*cell.values()])} (n={len(cell)})" if cell else "" for cell in cells]
            lines.append(f"| {labels} | {' | '.join(written)} | {paired(cells[1], cells[0])} |")
        lines += [needed_words(found, data, which) for which in ("error", "without")]
        lines += [*finished_words(found, data), *estimates(found, data)]
    return "\n".join(lines)


def title(order: str, which: str) -> str:
    return f"{NAMES[order]}, {'co-training' if which == 'error' else 'logistic regression'}"


def curve(found: Rows, data: str, order: str, which: str) -> Iterator[tuple[int, float]]:
    for labels in ROUNDS:
        if measured := errors(found, data, order, labels, which):
            yield labels, float(np.mean([*measured.values()]))


def needed(found: Rows, data: str, which: str) -> float | None:
    """Labels in our order for the mean error that random order has with 100, between two rounds by a straight line."""
    if not (reference := errors(found, data, "random", GOAL, which)):
        return None
    goal, before = float(np.mean([*reference.values()])), None
    for labels, error in curve(found, data, "informative", which):
        if error <= goal:
            if before is None:
                return float(labels)
            share = (before[1] - goal) / (before[1] - error)
            return before[0] + share * (labels - before[0])
        before = labels, error
    return None


def needed_words(found: Rows, data: str, which: str) -> str:
    labels = needed(found, data, which)
    reached = f"needs {labels:.0f} labels" if labels is not None else "does not get there with 200 labels"
    return f"\n{title('informative', which)} {reached} for the error of random order with {GOAL}."


def finished_words(found: Rows, data: str) -> Iterator[str]:
    """The model that Finish writes, with the labels of each order."""
    for labels in FINISHED:
        here = [row for row in found if (row["data"], row["labels"]) == (data, labels) and "finished" in row]
        ours, other = ({row["seed"]: row["finished"] for row in here if row["order"] == order} for order in ORDERS)
        if here:
            cells = f"{spread([*ours.values()])} in our order, {spread([*other.values()])} in random order"
            yield f"\nFinish with {labels} labels (n={len(ours)}): {cells}, difference {paired(other, ours)}."


def estimates(found: Rows, data: str) -> Iterator[str]:
    """The page's estimate by cross-validation next to the error on the test images."""
    for row in found:
        if row["data"] == data and "estimate" in row:
            error, low, high = row["estimate"]
            yield (
                f"- seed {row['seed']}, {NAMES[row['order']]}, {row['labels']} labels: estimated {error:.1f} "
                f"({low:.1f} to {high:.1f}), measured {row['error']:.1f}. {row['advice']}"
            )


def draw(found: Rows, path: Path) -> None:
    """One panel per data set: mean and standard deviation over seeds against the number of labels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sets = list(dict.fromkeys(row["data"] for row in found))
    figure, panels = pyplot.subplots(1, len(sets), figsize=(4.2 * len(sets), 3.6), squeeze=False)
    for panel, data in zip(panels[0], sets, strict=True):
        for order, which in WAYS:
            points = [(labels, [*errors(found, data, order, labels, which).values()]) for labels in ROUNDS]
            points = [(labels, values) for labels, values in points if values]
            panel.errorbar(
                [labels for labels, _ in points],
                [np.mean(values) for _, values in points],
                [np.std(values, ddof=1) if len(values) > 1 else 0 for _, values in points],
                label=title(order, which),
                color="C0" if order == "informative" else "C1",
                linestyle="-" if which == "error" else ":",
                marker="o" if which == "error" else "",
                markersize=3,
                capsize=2,
                linewidth=1.3,
            )
        panel.set(title=data, xlabel="labels", xscale="log", ylim=(0, None))
        panel.set_xticks(ROUNDS, [str(labels) for labels in ROUNDS], fontsize=8)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("error on test images, %")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncol=4, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
