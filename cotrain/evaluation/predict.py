"""Predict the classes of new images with a trained model."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.config import Config
from cotrain.data import Images
from cotrain.data.decode import MODES, Unreadable, read_image
from cotrain.data.files import in_parts
from cotrain.device import pick_device
from cotrain.evaluation.calibration import ENOUGH_WRONG, predicted_and_confidence, with_temperature
from cotrain.evaluation.outputs import head_logits, images_at_once
from cotrain.evaluation.selective import Threshold, images_needed, threshold_for
from cotrain.model import MultiHead
from cotrain.model.build import load_weights
from cotrain.model.own import own_network
from cotrain.ops import ensemble_probabilities
from cotrain.runs.checkpoint import read_tensors, write_whole
from cotrain.runs.run import Run
from cotrain.runs.upgrade import upgraded
from cotrain.types import UserError


@dataclass(frozen=True)
class Predictions:
    """One row per image."""

    labels: NDArray[np.int64]  # (n,) the ensemble's class
    classes: tuple[str, ...]  # class names, indexed by label
    probabilities: NDArray[np.float64]  # (n, C) the ensemble's, calibrated if the run had validation images
    heads_agree: NDArray[np.int64]  # (n,) number of heads that predict this class

    @property
    def names(self) -> list[str]:
        return [self.classes[label] for label in self.labels]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Model:
    """The averaged network of a run, with the image format and normalisation that it expects."""

    net: MultiHead
    config: Config
    classes: tuple[str, ...]
    size: tuple[int, int]  # height, width
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    temperature: float = 1.0  # fitted on validation images, if the run had any

    def logits(self, images: Images, rows: NDArray[np.int64]) -> Tensor:
        """(H, n, C) logits for these rows of uint8 images (N, h, w, c)."""
        wanted = (*self.size, self.channels)
        if tuple(images.shape[1:]) != wanted:
            raise UserError(
                f"the model takes uint8 images of shape (n, {', '.join(map(str, wanted))}), not {tuple(images.shape)}"
            )
        if len(rows) == 0:
            raise UserError("there are no images to predict")
        return head_logits(self.net, images, rows, self.mean, self.std)

    def predict(self, images: NDArray[np.uint8] | Tensor) -> Predictions:
        """Predict uint8 images (n, h, w) or (n, h, w, c) of the size that the model was trained on."""
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
        if pixels.ndim == 3:
            pixels = pixels[..., None]
        if pixels.dtype != torch.uint8:
            raise UserError(f"the model takes uint8 images of shape (n, h, w, c), not {pixels.dtype}")
        logits = self.logits(pixels, np.arange(len(pixels)))
        rule = self.config.run.ensemble
        labels = ensemble_probabilities(logits, rule).argmax(dim=-1)
        probabilities = with_temperature(logits, self.temperature, rule)
        agree = (logits.argmax(dim=-1) == labels).sum(dim=0)
        return Predictions(labels.numpy(), self.classes, probabilities.numpy(), agree.numpy())

    def predict_files(self, paths: Sequence[Path]) -> Iterator[dict[str, str | int | float]]:
        """Yield one row per file, in order. The row of an unreadable file has an `error`."""
        if self.channels not in MODES:
            raise UserError(f"the model takes images with {self.channels} channels; image files have 1 or 3")
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
                    "probability": float(predictions.probabilities[index, predictions.labels[index]]),
                    "heads_agree": int(predictions.heads_agree[index]),
                    "error": "",
                }


def load(run: str | Path, *, device: str = "cpu", model: Any = None) -> Model:
    """Load the model of a finished run from its folder.

    As in `fit`, `model` is needed only for a network of your own that cannot be imported.
    """
    folder = Path(run)
    opened = Run.open(folder)
    path = opened.model_path
    if not path.exists():
        raise UserError(f"{folder} is not finished: it has no {path.name} yet; resume with: {opened.resume_command}")
    tensors, facts = read_tensors(path)
    config = Config.parse(upgraded(facts["config"]))
    if model is not None:
        config = config.with_network(replace(own_network(model), recorded=config.model.backbone))
    net = config.build_network(len(facts["classes"]), facts["channels"])
    load_weights(net, tensors, path)
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
        fitted_temperature(opened.result or {}) or 1.0,
    )


def fitted_temperature(result: Mapping[str, Any]) -> float | None:
    """The fitted temperature, if any. Older runs store it among the calibrations of the test images."""
    if "temperature" in result:
        return result["temperature"]
    fitted = (result.get("calibration") or {}).get("ensemble", {}).get("fitted")
    return fitted["temperature"] if fitted else None


def how_calibrated(run: Path) -> str:
    """One line that says whether and how the model's probabilities are calibrated."""
    opened = Run.open(run)
    result, images = opened.result or {}, len(opened.split.valid)
    temperature = fitted_temperature(result)
    if temperature is None and images:
        return f"probabilities are not calibrated: {run / 'result.json'} has no temperature"
    if temperature is None:
        return (
            "probabilities are not calibrated: the run has no validation images to fit a temperature on; "
            "train with data.valid_share=0.2 to hold some out"
        )
    fitted = f"probabilities are calibrated: temperature {temperature:.3g}, fitted on {images:,} validation images"
    wrong = (result.get("temperature_fitted_on") or {}).get("wrong")
    if wrong is None:
        return fitted
    limited = f" (fewer than {ENOUGH_WRONG}, so it is kept at 1 or above)" if wrong < ENOUGH_WRONG else ""
    return f"{fitted}, {wrong} of them wrong{limited}"


def deferred(rows: Sequence[dict[str, str | int | float]], below: float) -> list[dict[str, str | int | float]]:
    """Add a column `defer`, "yes" where a person should decide, and sort the rows, least confident first."""

    def confidence(row: dict[str, str | int | float]) -> float:
        return -1.0 if row["error"] else float(row["probability"])

    marked = [row | {"defer": "yes" if confidence(row) < below else "no"} for row in rows]
    return sorted(marked, key=confidence)


def promised_threshold(run: Path, model: Model, target: float) -> Threshold:
    """The lowest probability threshold whose error is at most `target`, chosen on the run's validation images."""
    valid = Run.open(run).outputs(len(model.classes)).get("valid")
    if valid is None:
        raise UserError(
            f"--target-error needs validation images, but {run} has none: train with data.valid_share=0.2, "
            "or use --defer-below"
        )
    rule = model.config.run.ensemble
    labels, probabilities = predicted_and_confidence(valid.logits, rule, model.temperature)
    threshold = threshold_for(probabilities.numpy(), (labels == valid.labels).numpy(), target)
    if threshold is None:
        needed = f"about {images_needed(target):,}" if target > 0 else "infinitely many"
        raise UserError(
            f"{len(labels)} validation images cannot guarantee an error of at most {100 * target:g} % at any "
            f"threshold: that takes {needed} without a mistake; raise --target-error or data.valid_share, or use "
            "--defer-below"
        )
    return threshold


COLUMNS = ("path", "class", "probability", "heads_agree", "error")


def as_csv(rows: Sequence[dict[str, str | int | float]]) -> str:
    """The rows as CSV, with probabilities rounded to six digits."""
    text = io.StringIO()
    columns = [*COLUMNS, *(["defer"] if rows and "defer" in rows[0] else [])]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        probability = row["probability"]
        writer.writerow(row | {"probability": round(probability, 6) if isinstance(probability, float) else probability})
    return text.getvalue()


def write_csv(path: Path, rows: Sequence[dict[str, str | int | float]]) -> None:
    write_whole(path, as_csv(rows).encode(errors="surrogateescape"))
