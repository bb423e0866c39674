"""scores.npz: what a finished model predicted for its test and validation images."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.storage.reading import read_arrays, reason
from cotrain.storage.writing import write_whole
from cotrain.types import UserError

HELD_OUT = "held_out"  # labelled images, each predicted by a model that did not see its label
PARTS = {"test": "test", "valid": "validation", HELD_OUT: "held-out"}  # prefixes in the file, and names in messages


@dataclass(frozen=True)
class Outputs:
    """A model's logits for images with known labels, from which every score can be recomputed."""

    logits: Tensor  # (H, n, C)
    labels: Tensor  # (n,)
    rows: NDArray[np.int64]  # (n,) rows of the data set

    @property
    def of_each_head(self) -> "list[Outputs]":
        return [replace(self, logits=head[None]) for head in self.logits]


def write_outputs(path: Path, parts: Mapping[str, Outputs]) -> None:
    """Write plain arrays: test_logits (H, n, C), test_labels and test_rows (n,), and valid_* for validation images."""
    arrays: dict[str, Any] = {}
    for part, outputs in parts.items():
        arrays |= {f"{part}_{name}": np.asarray(values) for name, values in vars(outputs).items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_whole(path, content.getvalue())


def read_outputs(path: Path) -> dict[str, Outputs]:
    try:
        arrays = read_arrays(path)
        return {
            part: Outputs(
                torch.from_numpy(arrays[f"{part}_logits"]),
                torch.from_numpy(arrays[f"{part}_labels"]),
                arrays[f"{part}_rows"],
            )
            for part in PARTS
            if f"{part}_logits" in arrays
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is missing or damaged ({reason(error)})") from error


def checked_outputs(path: Path, heads: int, classes: int, rows: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
    """Read the outputs by part, and check that they fit the run's rows, heads and classes."""
    parts = read_outputs(path)
    for part, outputs in parts.items():
        logits, labels, name = outputs.logits, outputs.labels, PARTS[part]
        if outputs.rows.ndim != 1 or outputs.rows.dtype.kind not in "iu":
            raise UserError(f"{path} is damaged: its {name} rows are not whole numbers")
        some = part == HELD_OUT and bool(np.isin(outputs.rows, rows[part]).all())  # classes with one label keep it
        if not (some or np.array_equal(outputs.rows, rows[part])) or not len(rows[part]):
            raise UserError(f"{path} does not belong to this run: its {name} rows differ from those in split.json")
        if logits.shape != (heads, len(outputs.rows), classes) or labels.shape != (len(outputs.rows),):
            raise UserError(
                f"{path} does not belong to this model: its {name} logits have shape {tuple(logits.shape)} for "
                f"{len(labels)} labels, but the model has {heads} heads and {classes} classes"
            )
        typed = logits.dtype in (torch.float32, torch.float64) and labels.dtype == torch.int64
        if not typed or not logits.isfinite().all() or labels.min() < 0 or labels.max() >= classes:
            raise UserError(f"{path} is damaged: a {name} logit is NaN or infinite, or a {name} label is not a class")
    return parts
