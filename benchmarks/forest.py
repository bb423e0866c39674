"""A figure of `benchmarks.photographs`: how much more error each method has than co-training, with its interval.

python -m benchmarks.forest docs/results/photographs.jsonl --out docs/results/photographs.png
"""

import argparse
import statistics
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.photographs import ALWAYS, LOGISTIC, OURS, by_seed, rows
from cotrain.comparison.statistics import interval

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "plantvillage": "PlantVillage"}
NAMES = {
    LOGISTIC: "logistic regression",
    "supervised": "labelled-only heads",
    "mhct": "co-training without a graph",
    "fixmatch": "FixMatch",
    "laplacenet": "LaplaceNet",
}
MARKS = {1: "o", 4: "s", 25: "^"}  # by labels per class
WORSE, BETTER, UNCLEAR = "#b2182b", "#2166ac", "#888888"  # than co-training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    found = [*rows(asked.results)]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels = figure.subplots(1, len(TITLES), sharey=True)
    for axes, (data, title) in zip(panels, TITLES.items(), strict=True):
        axes.set_title(title)
        axes.axvline(0, color="black", linewidth=0.8)
        for place, method in enumerate(method for method in ALWAYS if method != OURS):
            for shift, labels in zip((-0.22, 0.0, 0.22), MARKS, strict=True):
                draw(
                    axes,
                    place + shift,
                    by_seed(found, data, labels, OURS),
                    by_seed(found, data, labels, method),
                    labels,
                )
    panels[0].set_yticks(range(len(NAMES)), NAMES.values())
    panels[0].invert_yaxis()
    figure.supxlabel("error minus that of co-training (mhct_graph), percentage points; the bars are 95 % intervals")
    for labels, mark in MARKS.items():
        panels[2].plot([], [], mark, color=UNCLEAR, label=f"{labels} per class")
    panels[2].legend(loc="upper right", title="labels", fontsize="small", title_fontsize="small")
    figure.savefig(asked.out, dpi=110)


def draw(axes: Axes, place: float, ours: dict[int, float], theirs: dict[int, float], labels: int) -> None:
    differences = [theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())]
    mean, (low, high) = statistics.mean(differences), interval(differences, 0.95)
    colour = WORSE if low > 0 else BETTER if high < 0 else UNCLEAR
    axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
    axes.plot([mean], [place], MARKS[labels], color=colour, markersize=5)


if __name__ == "__main__":
    main()
