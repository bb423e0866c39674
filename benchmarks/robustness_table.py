"""Tables and curves of `benchmarks.robustness`.

    python -m benchmarks.robustness_table robustness.jsonl --figures docs/results

Prints Markdown tables, mean ± standard deviation over seeds (n), and draws robustness-junk.png, robustness-labels.png
and robustness-imbalance.png.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.photographs import rows
from cotrain.comparison.statistics import spread

Row = dict[str, Any]
NESTED = {"scores": "auroc", "suspects": "precision"}  # experiments on scores rather than on errors
MEASURES = {"junk": ("error",), "labels": ("error",), "imbalance": ("balanced", "rarest")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--figures", type=Path)
    asked = parser.parse_args()
    found = [*rows(asked.results)]
    for experiment, measures in MEASURES.items():
        own = [row for row in found if row["experiment"] == experiment]
        for data in sorted({row["data"] for row in own}):
            here = [row for row in own if row["data"] == data]
            for measure in measures:
                print(f"\n### {experiment}, {data}: {measure}\n\n{table(here, measure)}")
            for method, inner in NESTED.items():
                if some := [row for row in here if row["method"] == method]:
                    print(f"\n### {experiment}, {data}: {inner}\n\n{table(unfolded(some, inner), inner)}")
        if asked.figures and own:
            draw(own, experiment, measures[0], asked.figures / f"robustness-{experiment}.png")


def unfolded(found: Sequence[Row], inner: str) -> list[Row]:
    """One row per score of a row that has several."""
    return [{**row, "method": name, inner: value} for row in found for name, value in row[inner].items()]


def table(found: Sequence[Row], measure: str) -> str:
    levels = list(dict.fromkeys(row["level"] for row in found))
    lines = ["| | " + " | ".join(map(str, levels)) + " |", "|---" * (len(levels) + 1) + "|"]
    for method in dict.fromkeys(row["method"] for row in found if measure in row):
        cells = [values(found, method, level, measure) for level in levels]
        lines.append(
            f"| {method} | " + " | ".join(f"{spread(some)} ({len(some)})" if some else "" for some in cells) + " |"
        )
    return "\n".join(lines)


def values(found: Sequence[Row], method: str, level: Any, measure: str) -> list[float]:
    return [row[measure] for row in found if (row["method"], row["level"]) == (method, level) and measure in row]


def draw(found: Sequence[Row], experiment: str, measure: str, path: Path) -> None:
    sets = sorted({row["data"] for row in found})
    figure, axes = plt.subplots(1, len(sets), figsize=(4.5 * len(sets), 3.4), constrained_layout=True, squeeze=False)
    for axis, data in zip(axes[0], sets, strict=True):
        here = [row for row in found if row["data"] == data and measure in row]
        levels = list(dict.fromkeys(row["level"] for row in here))
        for method in dict.fromkeys(row["method"] for row in here):
            each = [values(here, method, level, measure) for level in levels]
            places = [place for place, some in enumerate(each) if some]
            means, deviations = ([float(of(each[place])) for place in places] for of in (np.mean, np.std))
            axis.errorbar(places, means, deviations, marker="o", capsize=3, label=method)
        axis.set(title=data, xticks=range(len(levels)), xticklabels=levels, xlabel=experiment, ylabel=f"{measure} %")
    axes[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
