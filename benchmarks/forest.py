"""A figure of `benchmarks.photographs`: how much more error each method has than co-training, with its interval.

python -m benchmarks.forest docs/results/photographs.jsonl --out docs/results/photographs.png
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.photographs import NAMES, OURS, TITLES, by_seed, rows
from cotrain.comparison.statistics import clear_sign, interval

COLOURS = {1: "#b2182b", -1: "#2166ac", 0: "#888888"}  # clearly worse than co-training, clearly better, unclear
LEAST, MOST = -12.0, 24.0  # percentage points that are drawn; a difference beyond is an arrow with its number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--labels", type=int, default=4, help="per class")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    draw([row for row in rows(asked.results) if row["labels"] == asked.labels], asked.labels).savefig(
        asked.out, dpi=110
    )


def draw(found: Sequence[dict[str, Any]], labels: int) -> Figure:
    """One panel per data set; the methods are in the order of their difference on the first set that has them."""
    by_method = {
        method: {data: differences(found, data, labels, method) for data in TITLES}
        for method in {row["method"] for row in found} - {OURS}
    }

    def order(method: str) -> float:
        return next(statistics.mean(found) for found in by_method[method].values() if found)

    several = [method for method, sets in by_method.items() if any(len(found) > 1 for found in sets.values())]
    methods = sorted(several, key=order)
    sets = [data for data in TITLES if any(by_method[method][data] for method in methods)]
    figure = Figure(figsize=(2.2 + 2.5 * len(sets), 1.5 + 0.27 * len(methods)), layout="constrained")
    panels = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for axes, data in zip(panels, sets, strict=True):
        seeds = sorted({len(by_method[method][data]) for method in methods} - {0, 1})
        axes.set_title(f"{TITLES[data]} (n = {' or '.join(map(str, seeds))})", fontsize="medium")
        axes.axvspan(0, MOST, color=COLOURS[1], alpha=0.05, linewidth=0)
        axes.axvspan(LEAST, 0, color=COLOURS[-1], alpha=0.05, linewidth=0)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlim(LEAST, MOST)
        for place, method in enumerate(methods):
            if len(by_method[method][data]) > 1:
                draw_difference(axes, place, by_method[method][data])
    panels[0].set_yticks(range(len(methods)), [NAMES[method] for method in methods])
    panels[0].invert_yaxis()
    panels[0].text(0.02, 0.005, "better than\nco-training", transform=panels[0].transAxes, fontsize="x-small")
    panels[0].text(0.98, 0.995, "worse", transform=panels[0].transAxes, fontsize="x-small", ha="right", va="top")
    figure.supxlabel(
        f"test error minus that of co-training (mhct_graph), in points; {labels} labels per class; 95 % intervals",
        fontsize="medium",
    )
    return figure


def differences(found: Sequence[dict[str, Any]], data: str, labels: int, method: str) -> list[float]:
    ours, theirs = (by_seed([*found], data, labels, name) for name in (OURS, method))
    return [theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())]


def draw_difference(axes: Axes, place: float, found: Sequence[float]) -> None:
    mean, (low, high) = statistics.mean(found), interval(found, 0.95)
    colour = COLOURS[clear_sign(found)]
    if mean > MOST:
        axes.plot([MOST - 0.8], [place], ">", color=colour, markersize=5)
        axes.text(MOST - 2, place, f"+{mean:.0f}", color=colour, fontsize="x-small", ha="right", va="center")
        return
    axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
    axes.plot([mean], [place], "o", color=colour, markersize=5)


if __name__ == "__main__":
    main()
