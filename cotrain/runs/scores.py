"""scores.npz: what a finished model predicted for its test and validation images."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.runs.checkpoint import write_whole
from cotrain.types import UserError


@dataclass(frozen=True)
class Outputs:
    """What a model said of images whose labels are known: every score can be computed from it again."""

    logits: Tensor  # (H, n, C)
    labels: Tensor  # (n,)
    rows: NDArray[np.int64]  # (n,) in the data set

    @property
    def of_each_head(self) -> "list[Outputs]":
        return [replace(self, logits=head[None]) for head in self.logits]


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
