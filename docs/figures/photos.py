"""Draws photos.png: few labelled and many unlabelled images, how three heads teach each other, and the errors.

python docs/figures/made_photos.py photos/
python docs/figures/photos.py photos/

photos.json has the measured errors: the percentage of the unlabelled images whose predicted class is not the class in
photos-truth.csv. The heads' predictions in the middle are an example.
"""

import argparse
import csv
import json
from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image, ImageOps

from cotrain import recipe_named
from cotrain.augment import draw_strong, draw_weak, pixels

HERE = Path(__file__).parent
WIDTH, HEIGHT, SIDE = 1600, 600, 160
EXAMPLE, PREDICTED = "img_0053.jpg", ("lemon", "lemon", "orange")  # what heads 1, 2 and 3 predict
INK, PALE, LINE = "#222222", "#666666", "#c9c9c9"
HEADS = ("#1f6f8b", "#c8553d", "#6a4c93")
BARS = ("#b8b8b8", "#b8b8b8", "#1f6f8b")


def measured(file: Path) -> dict[str, float]:
    errors = json.loads(file.read_text())
    missing = [name for name, error in errors.items() if error is None]
    if missing:
        raise SystemExit(f"{file.name} has no measured error for {', '.join(missing)}; put in percentages for null")
    return errors


def square(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return ImageOps.fit(image, (SIDE, SIDE))


def show(axes: Axes, image: Image.Image, x: float, y: float, side: float, edge: str = "") -> None:
    """The image with its upper left corner at (x, y)."""
    axes.imshow(image, extent=(x, x + side, y + side, y), interpolation="lanczos")
    if edge:
        axes.add_patch(Rectangle((x, y), side, side, fill=False, edgecolor=edge, linewidth=3))


def write(axes: Axes, x: float, y: float, text: str, size: float = 12, colour: str = INK, **more: object) -> None:
    axes.text(x, y, text, size=size, color=colour, va="center", **{"ha": "center", **more})


def chip(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """A prediction, in the colour of its head."""
    axes.add_patch(
        FancyBboxPatch((x - 36, y - 12), 72, 24, boxstyle="round,pad=0,rounding_size=12", color=colour, linewidth=0)
    )
    write(axes, x, y, text, 11, "white")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = PALE) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.4, "mutation_scale": 13})


def draw_data(axes: Axes, folder: Path, labels: dict[str, str], unlabelled: list[str]) -> None:
    write(axes, 30, 36, f"{len(labels)} labelled images", 16, weight="bold", ha="left")
    for place, name in enumerate(sorted(set(labels.values()))):
        third = [path for path, label in labels.items() if label == name][:3][-1]
        x, y = 30 + place % 4 * 112, 62 + place // 4 * 134
        show(axes, square(folder / third), x, y, 100)
        write(axes, x + 50, y + 114, name)
    write(axes, 30, 356, f"{len(unlabelled)} unlabelled images", 16, weight="bold", ha="left")
    rng = np.random.default_rng(5)
    for place in rng.permutation(30):
        tile = ImageOps.expand(square(folder / unlabelled[place]), 5, "white")
        turned = ImageOps.expand(tile, 1, "#999999").convert("RGBA").rotate(rng.uniform(-16, 16), expand=True)
        side = 88 * turned.width / tile.width
        x, y = 74 + place % 10 * 39.5, 432 + place // 10 * 54
        show(axes, turned, x - side / 2 + rng.uniform(-7, 7), y - side / 2 + rng.uniform(-7, 7), side)


def draw_heads(axes: Axes, image: Image.Image) -> None:
    policy, rng = recipe_named("photos").augment, np.random.default_rng(16)
    pool = torch.from_numpy(np.array(image))[None]
    draws = [draw_weak(policy, 1, SIDE, SIDE, rng), *(draw_strong(policy, 1, SIDE, SIDE, rng) for _ in HEADS)]
    weak, *strong = (Image.fromarray(pixels(pool, np.array([0]), draw, policy)[0].numpy()) for draw in draws)
    write(axes, 890, 36, "Each head learns from the other two", 16, weight="bold")
    for x, title in ((884, "predictions"), (1014, "strong views"), (1164, "other heads")):
        write(axes, x, 78, title, 12, PALE)
    for x, title in ((610, "unlabelled"), (762, "weak view")):
        write(axes, x, 252, title, 12, PALE)
    show(axes, image, 550, 268, 120)
    show(axes, weak, 702, 268, 120)
    arrow(axes, (672, 328), (700, 328))
    for head, (view, colour) in enumerate(zip(strong, HEADS, strict=True)):
        y = 173 + head * 155
        arrow(axes, (824, 328), (846, y + 2 * np.sign(328 - y)), colour)
        write(axes, 884, y - 24, f"head {head + 1}", 12, colour, weight="bold")
        chip(axes, 884, y, PREDICTED[head], colour)
        show(axes, view, 949, y - 65, 130, colour)
        others = [other for other in range(3) if other != head]
        for place, other in enumerate(others):
            chip(axes, 1164, y - 34 + place * 28, PREDICTED[other], HEADS[other])
        agree = len({PREDICTED[other] for other in others}) == 1
        verdict = f"learn {PREDICTED[others[0]]}" if agree else "skip"
        write(axes, 1164, y + 30, verdict, 13, INK if agree else PALE, weight="bold" if agree else "normal")


def draw_errors(axes: Axes, errors: dict[str, float], images: int) -> None:
    write(axes, 1304, 36, "Error", 16, weight="bold", ha="left")
    write(axes, 1304, 78, f"on the {images} unlabelled images", 12, PALE, ha="left")
    longest = max(errors.values())
    for place, ((name, error), colour) in enumerate(zip(errors.items(), BARS, strict=True)):
        y = 190 + place * 140
        length = 185 * error / longest
        write(axes, 1304, y - 36, name, 13, ha="left")
        axes.add_patch(Rectangle((1304, y - 18), length, 44, color=colour, linewidth=0))
        write(axes, 1304 + length + 10, y + 4, f"{error:.1f} %", 16, weight="bold", ha="left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="made by made_photos.py")
    parser.add_argument("--errors", type=Path, default=HERE / "photos.json")
    parser.add_argument("--out", type=Path, default=HERE / "photos.png")
    asked = parser.parse_args()
    errors = measured(asked.errors)
    with (asked.folder / "labels.csv").open(newline="") as lines:
        labels = {row["path"]: row["label"] for row in csv.DictReader(lines)}
    unlabelled = sorted(file.name for file in asked.folder.glob("*.jpg") if file.name not in labels)

    figure = plt.figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    draw_data(axes, asked.folder, labels, unlabelled)
    draw_heads(axes, square(asked.folder / EXAMPLE))
    draw_errors(axes, errors, len(unlabelled))
    for x in (514, 1268):
        axes.plot([x, x], [24, HEIGHT - 24], color=LINE, linewidth=1)
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    figure.savefig(asked.out)
    with Image.open(asked.out) as drawn:
        levels = np.asarray(drawn.convert("RGB"), np.float32)
    Image.fromarray(np.uint8(np.round(levels / 5) * 5)).save(asked.out, optimize=True)  # invisible, and much smaller


if __name__ == "__main__":
    main()
