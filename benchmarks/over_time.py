"""A figure of runs of `benchmarks.grid`: error against training time, one panel per data set, one line per variant.

    python -m benchmarks.over_time --out over-time.png SVHN=runs/svhn CIFAR-10=runs/cifar10

Every run logs its error on 1,000 unlabelled images, whose labels only the evaluation knows. Thin lines are runs, thick
ones the mean of a variant's seeds. The table has the errors on the test images after the last step.
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

Variants = Mapping[str, Mapping[int, Path]]
REFERENCE = "labelled-only"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="+", help="TITLE=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    grids = {title: finished(Path(folder)) for title, _, folder in (grid.partition("=") for grid in asked.grids)}
    draw(grids).savefig(asked.out, dpi=110)
    for title, variants in grids.items():
        print(f"\n**{title}**\n\n{table(variants)}")


def finished(grid: Path) -> Variants:
    """The runs of a grid, by variant and seed."""
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    for result in sorted(grid.glob("*-seed*/result.json")):
        variant, _, seed = result.parent.name.rpartition("-seed")
        found[variant][int(seed)] = result.parent
    return found


def curve(run: Path) -> tuple[list[float], list[float]]:
    """Minutes and errors, which are in different rows of the log."""
    rows = read_log(run / "log.jsonl")
    minutes = {row["step"]: row["seconds"] / 60 for row in rows if "seconds" in row}
    errors = {row["step"]: row["unlabelled_error"] for row in rows if "unlabelled_error" in row}
    common = sorted(minutes.keys() & errors.keys())
    return [minutes[step] for step in common], [errors[step] for step in common]


def draw(grids: Mapping[str, Variants]) -> Figure:
    figure = Figure(figsize=(1 + 4.6 * len(grids), 3.6), layout="constrained")
    panels = figure.subplots(1, len(grids), squeeze=False)[0]
    names = sorted({name for variants in grids.values() for name in variants}, key=lambda name: name == REFERENCE)
    colours = {name: "#555555" if name == REFERENCE else f"C{number}" for number, name in enumerate(names)}
    for axes, (title, variants) in zip(panels, grids.items(), strict=True):
        for name in names:
            if name in variants:
                draw_variant(axes, name, [curve(run) for run in variants[name].values()], colours[name])
        axes.set(title=title, xlabel="minutes of training", ylim=(0, None))
    panels[0].set_ylabel("error on unlabelled images, %")
    panels[0].legend(fontsize="small")
    return figure


def draw_variant(axes: Axes, name: str, curves: list[tuple[list[float], list[float]]], colour: str) -> None:
    for minutes, errors in curves:
        axes.plot(minutes, errors, color=colour, linewidth=0.7, alpha=0.5)
    evaluations = min(len(errors) for _, errors in curves)
    mean = np.mean([[minutes[:evaluations], errors[:evaluations]] for minutes, errors in curves], axis=0)
    axes.plot(*mean, color=colour, linewidth=2, label=f"{name} (n = {len(curves)})")


def table(variants: Variants) -> str:
    results = {
        name: {seed: json.loads((run / "result.json").read_text()) for seed, run in runs.items()}
        for name, runs in variants.items()
    }
    errors = {name: {seed: result["test_error"] for seed, result in rows.items()} for name, rows in results.items()}
    body = [
        [
            name,
            str(next(iter(rows.values()))["steps"]),
            f"{statistics.mean(result['seconds'] for result in rows.values()) / 60:.1f}",
            shown_error(errors[name]),
            shown_difference(errors.get(REFERENCE, {}), errors[name]) if name != REFERENCE else "",
        ]
        for name, rows in results.items()
    ]
    return markdown(["method", "steps", "minutes", "test error, %", f"difference to {REFERENCE}, points"], body)


if __name__ == "__main__":
    main()
