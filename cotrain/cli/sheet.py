"""A contact sheet of what the network sees: a few images of each class with their weak and strong views."""

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from cotrain.augment import Draw, Policy, draw_plain, draw_strong, draw_weak
from cotrain.augment.views import pixels
from cotrain.data import Dataset
from cotrain.data.dataset import UNLABELLED
from cotrain.data.inputs import near
from cotrain.storage.writing import write_whole
from cotrain.types import UserError

TILE = 96  # pixels; small images are enlarged by a whole factor to about this size
GAP, MARGIN, NAME_WIDTH, LINE = 4, 16, 150, 22
INK, PALE, PAPER = "#1a1a1a", "#777777", "white"


def draw_sheet(
    dataset: Dataset, policy: Policy, *, weak: int = 2, strong: int = 3, each: int = 2, classes: int = 20, seed: int = 0
) -> Image.Image:
    """`each` training images of every class, and as many unlabelled ones, with their views side by side."""
    rng, held = np.random.default_rng(seed), dataset.kind.pixels
    chosen = _choose(dataset, each, classes, rng)
    rows = np.concatenate([some for _, some in chosen])
    height, width, channels = dataset.shape
    if channels not in (1, 3):
        raise UserError(f"images with {channels} channels cannot be drawn; only 1 or 3 channels can")

    def views(count: int, draw: Draw) -> NDArray[np.uint8]:
        """(n, count, h, w, c)"""
        shown = pixels(images, np.repeat(places, count), draw, policy).numpy()
        return shown.reshape(len(rows), count, height, width, channels)

    images, (places,) = near(held, [rows], torch.device("cpu"))
    columns = [
        ("image", views(1, draw_plain(len(rows)))),
        ("weak views", views(weak, draw_weak(policy, weak * len(rows), height, width, rng))),
        ("strong views, one per head", views(strong, draw_strong(policy, strong * len(rows), height, width, rng))),
    ]
    return _lay_out(dataset, [(name, len(some)) for name, some in chosen], columns)


def write_sheet(sheet: Image.Image, out: Path) -> None:
    data = BytesIO()
    sheet.save(data, "PNG")
    write_whole(out, data.getvalue())


def _choose(dataset: Dataset, each: int, classes: int, rng: np.random.Generator) -> list[tuple[str, NDArray[np.int64]]]:
    labels = dataset.labels.numpy()[dataset.train]
    groups = [(name, dataset.train[labels == index]) for index, name in enumerate(dataset.classes[:classes])]
    groups.append(("unlabelled", dataset.train[labels == UNLABELLED]))
    return [(name, np.sort(rng.permutation(rows)[:each])) for name, rows in groups if len(rows)]


def _lay_out(
    dataset: Dataset, groups: list[tuple[str, int]], columns: list[tuple[str, NDArray[np.uint8]]]
) -> Image.Image:
    height, width, _ = dataset.shape
    scale = max(1, round(TILE / max(height, width)))
    step_x, step_y = width * scale + GAP, height * scale + GAP
    font = ImageFont.load_default(13)
    top, count = MARGIN + 2 * LINE, sum(number for _, number in groups)
    widths = [views.shape[1] * step_x + MARGIN for _, views in columns]
    bottom = top + count * step_y + len(groups) * MARGIN
    sheet = Image.new("RGB", (2 * MARGIN + NAME_WIDTH + sum(widths), bottom), PAPER)
    pen = ImageDraw.Draw(sheet)
    more = len(dataset.classes) - len([name for name, _ in groups if name != "unlabelled"])
    shown = f"{dataset.name}: {height}x{width}, {len(dataset.classes)} classes" + (
        f", {more} not shown" if more else ""
    )
    pen.text((MARGIN, MARGIN), shown, INK, font)
    for column, (title, _) in enumerate(columns):
        x = MARGIN + NAME_WIDTH + sum(widths[:column])
        pen.text((x, MARGIN + LINE), _shortened(title, widths[column] - GAP, font), PALE, font)
    y, row = top, 0
    for name, number in groups:
        pen.text((MARGIN, y + GAP), _shortened(name, NAME_WIDTH - GAP, font), INK, font)
        for _ in range(number):
            for column, (_, views) in enumerate(columns):
                x = MARGIN + NAME_WIDTH + sum(widths[:column])
                for place, view in enumerate(views[row]):
                    sheet.paste(_tile(view, scale), (x + place * step_x, y))
            y, row = y + step_y, row + 1
        y += MARGIN
    return sheet


def _tile(view: NDArray[np.uint8], scale: int) -> Image.Image:
    picture = Image.fromarray(view[..., 0] if view.shape[-1] == 1 else view).convert("RGB")
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def _shortened(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
