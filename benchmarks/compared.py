"""Draw comparisons: one dot per run, one bar for the mean of each method, the best at the top.

python -m benchmarks.compared compared.png "equal steps=runs/compare-steps" "equal time=runs/compare-time"
"""

import argparse
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from cotrain.runs.result import Result

OURS, OTHERS = "#c44e52", "#4c72b0"


def errors(folder: Path) -> dict[str, list[float]]:
    """Test errors of each method's finished runs; the method with the best mean is first."""
    by_method: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*/seed-*/result.json")):
        by_method.setdefault(path.parent.parent.name, []).append(Result.read(path).test.error)
    return dict(sorted(by_method.items(), key=lambda pair: statistics.mean(pair[1])))


def draw(axes: Axes, title: str, by_method: dict[str, list[float]]) -> None:
    for place, (name, of_each_seed) in enumerate(by_method.items()):
        colour = OURS if name.startswith("mhct") else OTHERS
        mean = statistics.mean(of_each_seed)
        axes.barh(place, mean, color=colour, alpha=0.35)
        axes.plot(of_each_seed, [place] * len(of_each_seed), "o", color=colour, markersize=4)
        end = (max(mean, *of_each_seed), place)
        axes.annotate(f"{mean:.1f}", end, xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(by_method)), [*by_method], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("test error, %")
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("comparisons", nargs="+", help="TITLE=FOLDER")
    arguments = parser.parse_args()
    panels = {title: errors(Path(folder)) for title, _, folder in (one.partition("=") for one in arguments.comparisons)}
    rows = max(map(len, panels.values()))
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 0.6 + 0.25 * rows), squeeze=False)
    for one, (title, by_method) in zip(axes[0], panels.items(), strict=True):
        draw(one, title, by_method)
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
