"""Scores of a trained network: every head's error, and the ensemble's."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn

from cotrain.augment import Policy, draw_plain, normalised
from cotrain.calibrate import expected_calibration_error
from cotrain.checkpoint import write_whole
from cotrain.data.dataset import Images
from cotrain.data.source import near
from cotrain.ops import ensemble_probabilities, error_percent
from cotrain.types import UserError

PIXELS_AT_ONCE = 500 * 32 * 32


@dataclass(frozen=True)
class Outputs:
    """What a model said of images whose labels are known: every score can be computed from it again."""

    logits: Tensor  # (H, n, C)
    labels: Tensor  # (n,)
    rows: NDArray[np.int64]  # (n,) in the data set

    @property
    def of_each_head(self) -> "list[Outputs]":
        return [replace(self, logits=head[None]) for head in self.logits]


@dataclass(frozen=True)
class Scores:
    """Percent errors of the ensemble and of each head."""

    error: float
    interval: tuple[float, float]  # 95 % for the error, given how many images there are
    head_errors: list[float]
    ece: float  # expected calibration error of the ensemble, in percent


def images_at_once(height: int, width: int) -> int:
    """As many as keep the network's memory the same for images of any size."""
    return max(1, PIXELS_AT_ONCE // (height * width))


@torch.inference_mode()
def head_logits(
    net: nn.Module,
    images: Images,
    rows: NDArray[np.int64],
    mean: Sequence[float],
    std: Sequence[float],
    *,
    extra: bool = False,
) -> Tensor:
    """(H, n, C) logits of the images as they are. The network must be in eval mode."""
    assert not net.training
    device = next(net.parameters()).device
    logits = []
    for part in np.array_split(rows, -(-len(rows) // images_at_once(*images.shape[1:3]))):
        held, (places,) = near(images, [part], device)
        views = normalised(held, places, draw_plain(len(part)), Policy(), mean, std)
        logits.append(net(views.to(device), extra=extra).float().cpu())
    return torch.cat(logits, dim=1)


def score(logits: Tensor, labels: Tensor, ensemble: str) -> Scores:
    predicted = logits.argmax(dim=-1)
    probabilities = ensemble_probabilities(logits, ensemble)
    together = probabilities.argmax(dim=-1)
    return Scores(
        error=error_percent(together, labels),
        interval=error_interval(int((together != labels).sum()), len(labels)),
        head_errors=[error_percent(head, labels) for head in predicted],
        ece=expected_calibration_error(probabilities, labels),
    )


def error_interval(wrong: int, images: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the error, in percent."""
    interval = binomtest(wrong, images).proportion_ci(0.95, method="wilson")
    return 100 * float(interval.low), 100 * float(interval.high)


def write_outputs(path: Path, parts: Mapping[str, Outputs]) -> None:
    """As plain arrays: test_logits (H, n, C), test_labels and test_rows (n,), and the same of valid images."""
    arrays: dict[str, Any] = {}
    for part, outputs in parts.items():
        arrays |= {f"{part}_{name}": np.asarray(values) for name, values in vars(outputs).items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_whole(path, content.getvalue())


def read_outputs(path: Path) -> dict[str, Outputs]:
    try:
        with np.load(path) as arrays:
            return {
                part: Outputs(
                    torch.from_numpy(arrays[f"{part}_logits"]),
                    torch.from_numpy(arrays[f"{part}_labels"]),
                    arrays[f"{part}_rows"],
                )
                for part in ("test", "valid")
                if f"{part}_logits" in arrays
            }
    except (OSError, EOFError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not there or damaged ({error})") from error


def checked_outputs(path: Path, heads: int, classes: int, rows: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
    """What a model of so many heads and classes said of these rows of its data, by part."""
    parts = read_outputs(path)
    for part, outputs in parts.items():
        logits, labels = outputs.logits, outputs.labels
        if not np.array_equal(outputs.rows, rows[part]) or not len(rows[part]):
            raise UserError(f"{path} is not of this run: its {part} images are others than in split.json")
        if logits.shape != (heads, len(rows[part]), classes) or labels.shape != (len(rows[part]),):
            raise UserError(
                f"{path} is not of this model: its {part} logits are {tuple(logits.shape)} for {len(labels)} labels, "
                f"and there are {heads} heads and {classes} classes"
            )
        numbers = logits.is_floating_point() and logits.isfinite().all() and labels.dtype == torch.int64
        if not numbers or labels.min() < 0 or labels.max() >= classes:
            raise UserError(f"{path} is damaged: a logit is not a number, or a label is none of the classes ({part})")
    return parts
