"""A trained model on new images."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.checkpoint import read_tensors, write_whole
from cotrain.config import Config
from cotrain.data import Images
from cotrain.data.decode import MODES, Unreadable, read_image
from cotrain.data.files import in_parts
from cotrain.device import pick_device
from cotrain.evaluate import head_logits, images_at_once
from cotrain.model import MultiHead
from cotrain.ops import ensemble_probabilities
from cotrain.run import Run
from cotrain.train import build_network
from cotrain.types import UserError


@dataclass(frozen=True)
class Predictions:
    """One row an image."""

    labels: NDArray[np.int64]  # (n,) the ensemble's class
    classes: tuple[str, ...]  # their names, to look labels up in
    probabilities: NDArray[np.float64]  # (n, C) the ensemble's
    heads_agree: NDArray[np.int64]  # (n,) how many heads say that class

    @property
    def names(self) -> list[str]:
        return [self.classes[label] for label in self.labels]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Model:
    """The averaged network of a run, and what it needs to know about images."""

    net: MultiHead
    config: Config
    classes: tuple[str, ...]
    size: tuple[int, int]  # height, width
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def logits(self, images: Images, rows: NDArray[np.int64]) -> Tensor:
        """(H, n, C) of these rows of uint8 images (N, h, w, c)."""
        wanted = (*self.size, self.channels)
        if tuple(images.shape[1:]) != wanted:
            raise UserError(
                f"the model takes uint8 images of (n, {', '.join(map(str, wanted))}), not of {tuple(images.shape)}"
            )
        if len(rows) == 0:
            raise UserError("there is no image to predict")
        return head_logits(self.net, images, rows, self.mean, self.std)

    def predict(self, images: NDArray[np.uint8] | Tensor) -> Predictions:
        """Of uint8 images (n, h, w) or (n, h, w, c) of the size that the model was trained on."""
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
        if pixels.ndim == 3:
            pixels = pixels[..., None]
        if pixels.dtype != torch.uint8:
            raise UserError(f"the model takes uint8 images of (n, h, w, c), not {pixels.dtype}")
        logits = self.logits(pixels, np.arange(len(pixels)))
        probabilities = ensemble_probabilities(logits, self.config.run.ensemble)
        labels = probabilities.argmax(dim=-1)
        agree = (logits.argmax(dim=-1) == labels).sum(dim=0)
        return Predictions(labels.numpy(), self.classes, probabilities.numpy(), agree.numpy())

    def predict_files(self, paths: Sequence[Path]) -> Iterator[dict[str, str | int | float]]:
        """A row for every file, in order; one that cannot be read has an `error` and the rest go on."""
        if self.channels not in MODES:
            raise UserError(f"the model takes images of {self.channels} channels; image files have 1 or 3")
        for part in in_parts(paths, images_at_once(*self.size)):
            images, errors = [], {}
            for path in part:
                try:
                    images.append(read_image(path, *self.size, self.channels))
                except Unreadable as error:
                    errors[path] = str(error)
            predictions = self.predict(np.stack(images)) if images else None
            readable = iter(range(len(images)))
            for path in part:
                row: dict[str, str | int | float] = {"path": str(path)}
                if path in errors:
                    yield row | {
                        "class": "",
                        "probability": "",
                        "heads_agree": "",
                        "error": f"unreadable: {errors[path]}",
                    }
                    continue
                assert predictions is not None
                index = next(readable)
                yield row | {
                    "class": predictions.names[index],
                    "probability": round(float(predictions.probabilities[index].max()), 6),
                    "heads_agree": int(predictions.heads_agree[index]),
                    "error": "",
                }


def load(run: str | Path, *, device: str = "cpu") -> Model:
    """The model of a finished run, from its folder."""
    folder = Path(run)
    if not folder.exists():
        raise UserError(f"there is no run {folder}")
    path = Run.open(folder).model_path
    if not path.exists():
        raise UserError(f"{folder} is not finished: there is no {path.name} yet; go on with --resume")
    tensors, facts = read_tensors(path)
    config = Config.parse(facts["config"])
    net = build_network(config, len(facts["classes"]), facts["channels"])
    net.load_state_dict(tensors)
    net = net.to(pick_device(device)).channels_last().eval().requires_grad_(False)
    height, width = facts["size"]
    return Model(
        net,
        config,
        tuple(facts["classes"]),
        (height, width),
        facts["channels"],
        tuple(facts["mean"]),
        tuple(facts["std"]),
    )


COLUMNS = ("path", "class", "probability", "heads_agree", "error")


def as_csv(rows: Sequence[dict[str, str | int | float]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_csv(path: Path, rows: Sequence[dict[str, str | int | float]]) -> None:
    write_whole(path, as_csv(rows).encode(errors="surrogateescape"))
