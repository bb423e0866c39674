"""Predict any number of image files: workers decode the next batches while the network predicts this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cotrain.data.decode import MODES
from cotrain.data.workers import Decoded, Workers
from cotrain.types import UserError

if TYPE_CHECKING:
    from cotrain.data.feature_table import Features
    from cotrain.inference.model import Model, Predictions

LARGEST_BATCH = 128  # larger ones are not faster
ROWS_AT_ONCE = 8192  # of a table
UNREADABLE = -1  # the label of an unreadable file
RECORD = np.dtype([("label", "<i4"), ("heads_agree", "<i4"), ("probability", "<f8"), ("belongs", "<f4")])


@dataclass(frozen=True)
class Predicted:
    """The predictions of consecutive files in 20 bytes each, and why some of the files are unreadable."""

    records: NDArray[np.void]  # (n,) of RECORD
    errors: dict[int, str]  # by row

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, rows: slice) -> Predicted:
        first, end, _ = rows.indices(len(self))
        errors = {row - first: error for row, error in self.errors.items() if first <= row < end}
        return Predicted(self.records[rows], errors)


def joined(parts: Sequence[Predicted]) -> Predicted:
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    errors = {
        start + row: error for start, part in zip(starts[:-1], parts, strict=True) for row, error in part.errors.items()
    }
    return Predicted(np.concatenate([np.empty(0, RECORD), *(part.records for part in parts)]), errors)


def check_channels(model: Model) -> None:
    if model.channels not in MODES:
        raise UserError(f"the model takes images with {model.channels} channels; image files have 1 or 3")


def files_at_once(model: Model) -> int:
    """Files per batch. The last bits of a probability may depend on it, so a resumed job must use the same number."""
    return min(LARGEST_BATCH, model.images_at_once)


def predict_in_batches(
    model: Model, paths: Sequence[str], workers: Workers, batch: int, start: int = 0
) -> Iterator[Predicted]:
    """Predict the files from number `start` on, in order, `batch` files at a time."""
    batches = (paths[first : first + batch] for first in range(start, len(paths), batch))
    for decoded in workers.decode(batches, (*model.size, model.channels)):
        yield predict_batch(model, decoded)


def predict_rows(model: Model, features: Features, rows: NDArray[np.int64]) -> Iterator[Predicted]:
    """Predict these rows of a table, in order, some thousands at a time."""
    for block in np.array_split(rows, -(-len(rows) // ROWS_AT_ONCE)):
        yield Predicted(_records(model.predict_features(features, block)), {})


def _records(predictions: Predictions) -> NDArray[np.void]:
    records = np.empty(len(predictions), RECORD)
    records["label"], records["heads_agree"] = predictions.labels, predictions.heads_agree
    records["probability"] = predictions.probabilities[np.arange(len(predictions)), predictions.labels]
    records["belongs"] = np.nan if predictions.belongs is None else predictions.belongs
    return records


def predict_batch(model: Model, decoded: Decoded) -> Predicted:
    records = np.full(len(decoded.errors), np.array((UNREADABLE, 0, 0.0, np.nan), RECORD))
    readable = [row for row, error in enumerate(decoded.errors) if error is None]
    if readable:
        images = decoded.images if len(readable) == len(records) else decoded.images[readable]
        records[readable] = _records(model.predict(images))
    return Predicted(records, {row: error for row, error in enumerate(decoded.errors) if error is not None})
