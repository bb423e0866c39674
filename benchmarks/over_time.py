"""A figure of comparisons at equal time: error against training time, one panel per comparison, one line per method.

    python -m benchmarks.over_time --out over-time.png "SVHN, 1,000 labels=runs/svhn-1000" "CIFAR-10=runs/cifar10-1000"

Every run logs its error on 1,000 unlabelled images, whose labels only the evaluation knows. Thin lines are runs, thick
ones the mean of a method's seeds. The table has the errors on the test images after the last step.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.photographs import markdown, shown_difference, shown_error
from cotrain.runs.log import read_log

Methods = Mapping[str, Mapping[int, Path]]  # the runs, by method and seed
REFERENCE = "supervised"
ACROSS = 3  # panels
NAMES = {REFERENCE: "labelled-only", "mhct": "co-training", "mhct_routed": "routed co-training", "fixmatch": "FixMatch"}
COLOURS = {REFERENCE: "#555555", "mhct": "#1f6fb2", "mhct_routed": "#2a8a4a", "fixmatch": "#c4620a"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparisons", nargs="+", help="TITLE=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    named = (comparison.rpartition("=") for comparison in asked.comparisons)
    comparisons = {title: finished(Path(folder)) for title, _, folder in named}
    draw(comparisons).savefig(asked.out, dpi=110)
    for title, methods in comparisons.items():
        print(f"\n**{title}**\n\n{table(methods)}")


def finished(comparison: Path) -> Methods:
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    for result in sorted(comparison.glob("*/seed-*/result.json")):
        found[result.parent.parent.name][int(result.parent.name.removeprefix("seed-"))] = result.parent
    return found


def curve(run: Path) -> tuple[list[float], list[float]]:
    """Minutes and errors, which are in different rows of the log."""
    rows = read_log(run / "log.jsonl")
    minutes = {row["step"]: row["seconds"] / 60 for row in rows if "seconds" in row}
    errors = {row["step"]: row["unlabelled_error"] for row in rows if "unlabelled_error" in row}
    common = sorted(minutes.keys() & errors.keys())
    return [minutes[step] for step in common], [errors[step] for step in common]


def draw(comparisons: Mapping[str, Methods]) -> Figure:
    columns = min(ACROSS, len(comparisons))
    rows = -(-len(comparisons) // columns)
    figure = Figure(figsize=(1 + 4.2 * columns, 3.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(comparisons) :]:
        axes.set_axis_off()
    for axes, (title, methods) in zip(panels.flat, comparisons.items(), strict=False):
        curves = {name: [curve(run) for run in methods[name].values()] for name in NAMES if name in methods}
        for name, found in curves.items():
            draw_method(axes, NAMES[name], found, COLOURS[name])
        highest = max(errors[-1] for found in curves.values() for _, errors in found)
        axes.set(title=title, xlabel="minutes of training", ylim=(0, 2 * highest))
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small", loc="upper right")
    for axes in panels[:, 0]:
        axes.set_ylabel("error on unlabelled images, %")
    return figure


def draw_method(axes: Axes, name: str, curves: list[tuple[list[float], list[float]]], colour: str) -> None:
    for minutes, errors in curves:
        axes.plot(minutes, errors, color=colour, linewidth=0.7, alpha=0.5)
    evaluations = min(len(errors) for _, errors in curves)
    mean = np.mean([[minutes[:evaluations], errors[:evaluations]] for minutes, errors in curves], axis=0)
    axes.plot(*mean, color=colour, linewidth=2, label=f"{name} (n = {len(curves)})")


def table(methods: Methods) -> str:
    results = {
        name: {seed: json.loads((run / "result.json").read_text()) for seed, run in methods[name].items()}
        for name in NAMES
        if name in methods
    }
    errors = {name: {seed: result["test_error"] for seed, result in rows.items()} for name, rows in results.items()}
    body = [
        [
            NAMES[name],
            str(next(iter(rows.values()))["steps"]),
            f"{statistics.mean(result['seconds'] for result in rows.values()) / 60:.1f}",
            shown_error(errors[name]),
            shown_difference(errors.get(REFERENCE, {}), errors[name]) if name != REFERENCE else "",
        ]
        for name, rows in results.items()
    ]
    return markdown(["method", "steps", "minutes", "test error, %", "difference to labelled-only, points"], body)


if __name__ == "__main__":
    main()
