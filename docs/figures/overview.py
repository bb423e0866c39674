"""Draws overview.png: what each head sees of an unlabelled image, and what forty labels give with and without the rest.

python docs/figures/overview.py
"""

import json
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.gridspec import GridSpec

from cotrain import recipe_named
from cotrain.augment import draw_plain, draw_strong, draw_weak, pixels
from cotrain.data import open_data

HERE = Path(__file__).parent
ROWS = [3, 17, 42, 96]
COLUMNS = [
    "image",
    "weak view\nall heads label it",
    "strong view\nfor head 1",
    "strong view\nfor head 2",
    "strong view\nfor head 3",
]
INK, LABELLED, COTRAINED = "#222222", "#b8b8b8", "#1f6f8b"


def draw_views(figure: plt.Figure, grid: GridSpec) -> None:
    digits, policy = open_data("digits"), recipe_named("digits").augment
    rng = np.random.default_rng(2)
    draws = [draw_plain(len(ROWS)), draw_weak(policy, len(ROWS), 16, 16, rng)]
    draws += [draw_strong(policy, len(ROWS), 16, 16, rng) for _ in range(3)]
    for column, (title, draw) in enumerate(zip(COLUMNS, draws, strict=True)):
        views = pixels(digits.images, np.array(ROWS), draw, policy)[..., 0].numpy()
        for row, view in enumerate(views):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(view, cmap="gray", vmin=0, vmax=255)
            axes.set_axis_off()
            if row == 0:
                axes.set_title(title, fontsize=8, color=INK)


def draw_errors(axes: Axes) -> None:
    runs = json.loads((HERE.parent / "results" / "digits.json").read_text())
    bars = [[run["labelled_only_error"] for run in runs], [run["test_error"] for run in runs]]
    for place, (errors, colour) in enumerate(zip(bars, (LABELLED, COTRAINED), strict=True)):
        axes.barh(place, np.mean(errors), color=colour, height=0.6)
        axes.plot(errors, [place] * len(errors), "o", color=INK, markersize=3, alpha=0.7)
        axes.text(max(errors) + 0.6, place, f"{np.mean(errors):.1f} %", va="center", fontsize=10, color=INK)
    axes.set_yticks([0, 1], ["40 labelled\nimages only", "and 1,257\nunlabelled ones"], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, max(bars[0]) * 1.25)
    axes.set_xlabel(f"test error, percent (bar: mean of {len(runs)} seeds, dots: each)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)


def main() -> None:
    figure = plt.figure(figsize=(10, 3.6), dpi=130)
    draw_views(
        figure, GridSpec(len(ROWS), len(COLUMNS), figure, left=0.02, right=0.55, top=0.84, bottom=0.03, wspace=0.1)
    )
    draw_errors(figure.add_axes((0.7, 0.22, 0.28, 0.5)))
    figure.savefig(HERE / "overview.png")


if __name__ == "__main__":
    main()
