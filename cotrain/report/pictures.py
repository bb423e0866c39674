"""Images for the report, embedded as small PNG files: mistakes, images to label next, and views."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from cotrain.augment import draw_plain, draw_strong, draw_weak
from cotrain.augment.views import pixels
from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.data.inputs import near
from cotrain.data.kinds import evenly
from cotrain.evaluation.calibration import predicted_and_confidence
from cotrain.inference.model import Model
from cotrain.ops import entropy, js_divergence
from cotrain.runs.scores import Outputs
from cotrain.storage.cells import class_cell, csv_line, safe_path
from cotrain.storage.writing import write_whole

SHOWN = 24  # images per gallery
LISTED = 200  # rows of label_next.csv
LOOKED_AT = 5_000  # unlabelled images to search for the ones to label next
SIDE = 96  # pixels; larger images are shrunk
GAP = 8  # pixels between the images of a sheet
COLUMNS = ("path", "row", "class", "probability", "heads_agree", "disagreement")


@dataclass(frozen=True)
class Picture:
    png: bytes
    name: str  # its file, or its row in the dataset
    words: str

    @property
    def uri(self) -> str:
        return uri_of(self.png)


@dataclass(frozen=True)
class Doubt:
    """An unlabelled image, and how uncertain the model is about it."""

    row: int
    file: str  # "" if the images are not files
    predicted: str  # the ensemble's class
    probability: float
    heads: tuple[str, ...]  # each head's class
    disagreement: float  # Jensen-Shannon divergence of the heads in nats; entropy if there is one head

    @property
    def name(self) -> str:
        return self.file or f"row {self.row}"

    @property
    def heads_agree(self) -> int:
        return self.heads.count(self.predicted)


@dataclass(frozen=True)
class Search:
    """The unlabelled images about which the model is most uncertain, among those that were searched."""

    doubts: list[Doubt]
    looked_at: int
    unlabelled: int


@dataclass(frozen=True)
class ViewsOfImage:
    name: str
    strips: dict[str, bytes]  # heading -> views side by side

    @property
    def uris(self) -> dict[str, str]:
        return {heading: uri_of(strip) for heading, strip in self.strips.items()}


def uri_of(png: bytes) -> str:
    """A data URI, so that the image is inside the HTML file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def can_be_drawn(dataset: Dataset) -> bool:
    return dataset.kind.can_draw


def name_of(dataset: Dataset, row: int) -> str:
    return dataset.paths[row] if dataset.paths else f"row {row}"


@dataclass(frozen=True)
class Mistake:
    row: int
    predicted: str
    probability: float
    label: str

    @property
    def words(self) -> str:
        return f"predicted {self.predicted}, {100 * self.probability:.1f} %; label {self.label}"


def most_confident(test: Outputs, rule: str, temperature: float | None, classes: tuple[str, ...]) -> list[Mistake]:
    """Misclassified test images, the most confident first."""
    predicted, probability = predicted_and_confidence(test.logits, rule, temperature or 1.0)
    wrong = (predicted != test.labels).nonzero()[:, 0]
    order = wrong[torch.argsort(probability[wrong], descending=True, stable=True)][:SHOWN]
    return [
        Mistake(
            int(test.rows[place]),
            classes[int(predicted[place])],
            float(probability[place]),
            classes[int(test.labels[place])],
        )
        for place in order.tolist()
    ]


def confident_mistakes(test: Outputs, rule: str, temperature: float | None, dataset: Dataset) -> list[Picture]:
    return [
        Picture(picture_of_row(dataset, one.row), name_of(dataset, one.row), one.words)
        for one in most_confident(test, rule, temperature, dataset.classes)
    ]


def search(model: Model, dataset: Dataset, split: Split) -> Search:
    """Find the images on which the heads disagree most, or on which a single head is least confident."""
    unlabelled = np.setdiff1d(np.asarray(split.unlabelled, np.int64), np.asarray(split.labelled, np.int64))
    rows = evenly(unlabelled, LOOKED_AT)
    return Search(_doubts(model, dataset, rows) if len(rows) else [], len(rows), len(unlabelled))


def _doubts(model: Model, dataset: Dataset, rows: NDArray[np.int64]) -> list[Doubt]:
    logits = model.logits_of(dataset, rows)
    amount = js_divergence(logits) if len(logits) > 1 else entropy(logits[0])
    predicted, probability = predicted_and_confidence(logits, model.config.run.ensemble, model.temperature)
    of_heads, names = logits.argmax(dim=-1), dataset.classes
    order = torch.argsort(amount, descending=True, stable=True)[:LISTED]
    return [
        Doubt(
            row=int(rows[place]),
            file=dataset.paths[rows[place]] if dataset.paths else "",
            predicted=names[int(predicted[place])],
            probability=float(probability[place]),
            heads=tuple(names[int(head)] for head in of_heads[:, place]),
            disagreement=max(0.0, float(amount[place])),
        )
        for place in order.tolist()
    ]


def pictures_of(doubts: list[Doubt], dataset: Dataset) -> list[Picture]:
    return [Picture(picture_of_row(dataset, one.row), one.name, _words(one)) for one in doubts[:SHOWN]]


def _words(doubt: Doubt) -> str:
    if len(doubt.heads) > 1:
        return f"heads predict {', '.join(doubt.heads)}"
    return f"{doubt.predicted}, {100 * doubt.probability:.1f} %"


def write_doubts(path: Path, doubts: list[Doubt]) -> None:
    lines = [csv_line(COLUMNS)]
    for one in doubts:
        numbers = (f"{one.probability:.6f}", one.heads_agree, f"{one.disagreement:.6f}")
        lines.append(csv_line((safe_path(one.file), one.row, class_cell(one.predicted), *numbers)))
    write_whole(path, "".join(lines).encode(errors="surrogateescape"))


def some_views(dataset: Dataset, split: Split, config: Config, images: int = 6) -> list[ViewsOfImage]:
    """A few unlabelled images with the views used in training."""
    rng, (height, width, _) = np.random.default_rng(config.run.seed), dataset.shape
    rows = evenly(np.asarray(split.unlabelled, np.int64), images)
    held, (places,) = near(dataset.kind.pixels, [rows], torch.device("cpu"))
    wanted, policy, count = config.method.views, config.augment, len(rows)
    draws = {"image": (1, draw_plain(count))}
    if wanted.weak_augment:
        draws["weak views"] = (2, draw_weak(policy, 2 * count, height, width, rng))
    if wanted.strong and wanted.ctaugment == "none":
        strong = min(wanted.strong, 4)
        draws["strong views"] = (strong, draw_strong(policy, strong * count, height, width, rng))
    strips = {
        title: _strips(pixels(held, np.repeat(places, number), draw, policy).numpy(), number)
        for title, (number, draw) in draws.items()
    }
    return [
        ViewsOfImage(name_of(dataset, int(row)), {title: some[place] for title, some in strips.items()})
        for place, row in enumerate(rows)
    ]


def _strips(views: NDArray[np.uint8], number: int) -> list[bytes]:
    """(n x number, h, w, c) -> one PNG per image, with its views side by side and transparent gaps."""
    tiles = [_small(view) for view in views]
    step = tiles[0].width + max(1, tiles[0].width // 12)
    strips = []
    for start in range(0, len(tiles), number):
        strip = Image.new("RGBA", (number * step, tiles[0].height))
        for place, tile in enumerate(tiles[start : start + number]):
            strip.paste(tile.convert("RGBA"), (place * step, 0))
        strips.append(_png(strip))
    return strips


def in_rows(pngs: list[bytes], columns: int = 6) -> list[list[bytes]]:
    return [pngs[start : start + columns] for start in range(0, len(pngs), columns)]


def sheet(rows: list[list[bytes]]) -> bytes:
    """One PNG file with rows of images of equal height, on white; small images are enlarged."""
    tiles = [[_enlarged(png) for png in row] for row in rows]
    width, step = max(sum(tile.width + GAP for tile in row) for row in tiles), tiles[0][0].height + GAP
    whole = Image.new("RGBA", (width, step * len(tiles)), "white")
    for place, row in enumerate(tiles):
        left = 0
        for tile in row:
            whole.alpha_composite(tile, (left, place * step))
            left += tile.width + GAP
    return _png(whole.convert("RGB"))


def _enlarged(png: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    times = max(1, SIDE // picture.height)
    return picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)


def picture_of_row(dataset: Dataset, row: int) -> bytes:
    return _png(_small(dataset.images[np.array([row])][0].numpy()))


def _small(image: NDArray[np.uint8]) -> Image.Image:
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return picture


def _png(picture: Image.Image) -> bytes:
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()
