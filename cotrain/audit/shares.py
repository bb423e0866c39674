"""How large each class is among the unlabelled images: estimated from predictions, or given in a file.

Predicted classes are counted, and the counts are corrected by how held-out labelled images were confused: the shares
are those under which the counts are most likely (the maximum-likelihood form of black-box shift estimation; Lipton,
Wang and Smola, 2018). A few labels per class tell too little about confusion, so they correct little.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from cotrain.storage.cells import class_of
from cotrain.storage.reading import read_bytes, reason
from cotrain.types import UserError

Shares = NDArray[np.float64]
TRUSTED = 20.0  # right predictions that are added to those of each class: few labels correct little
ITERATIONS = 200
RESAMPLES = 200
PRECISION = 1e-9
TOLERANCE = 0.01  # by which the shares of a file may miss 1


@dataclass(frozen=True)
class Estimated:
    """(C,) shares that sum to 1, with 95 % intervals by resampling the labelled images."""

    share: Shares
    low: Shares
    high: Shares


def estimate_shares(labels: NDArray, predicted: NDArray, unlabelled: NDArray, classes: int, seed: int = 0) -> Estimated:
    """From held-out predictions (L,) for labels (L,), and from predictions for unlabelled images (n,)."""
    counts = np.bincount(unlabelled, minlength=classes).astype(np.float64)
    drawn = np.random.default_rng((seed, 12)).integers(len(labels), size=(RESAMPLES, len(labels)))
    times = np.stack([np.ones(len(labels)), *(np.bincount(rows, minlength=len(labels)) for rows in drawn)])
    found = _most_likely(labels, predicted, times, counts)
    low, high = np.quantile(found[1:], [0.025, 0.975], axis=0)
    return Estimated(found[0], np.minimum(low, found[0]), np.maximum(high, found[0]))


def _most_likely(labels: NDArray, predicted: NDArray, times: Shares, counts: Shares) -> Shares:
    """Expectation-maximisation, (R, C): row r counts labelled image i `times[r, i]` times.

    The probability of a prediction for a class comes from pairs of both: TRUSTED right ones of each class, and the
    labelled images. All other pairs are impossible. The start is the same share for all classes, and so is the answer
    without counts.
    """
    classes = len(counts)
    shares = np.full((len(times), classes), 1 / classes)
    if not counts.any():
        return shares
    of = np.concatenate([np.arange(classes), labels])
    taken_for = np.concatenate([np.arange(classes), predicted])
    by_class, by_prediction = (csr_array((np.ones(len(of)), (np.arange(len(of)), to))) for to in (of, taken_for))
    pairs = np.concatenate([np.full((len(times), classes), TRUSTED), times], axis=1)
    pairs /= (pairs @ by_class)[:, of]
    for _ in range(ITERATIONS):
        joint = shares[:, of] * pairs
        total = joint @ by_prediction
        explained = np.divide(counts, total, out=np.zeros_like(total), where=total > 0)
        before, shares = shares, (joint * explained[:, taken_for]) @ by_class
        shares /= shares.sum(axis=1, keepdims=True)
        if np.abs(shares - before).max() < PRECISION:
            break
    return shares


def read_shares(path: Path, classes: Sequence[str]) -> Shares:
    """A table with the columns class and share, one row per class; the shares sum to 1."""
    try:
        rows = [*csv.DictReader(io.StringIO(read_bytes(path).decode("utf-8-sig"), newline=""))]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"cannot read the class shares {path} ({reason(error)})") from error
    shares = np.full(len(classes), np.nan)
    for number, row in enumerate(rows, start=2):
        name, written = row.get("class"), row.get("share")
        if name is None or written is None:
            raise UserError(f"{path}: line {number} needs the columns class and share")
        if (known := class_of(name)) is not None and name not in classes:
            name = known  # as other tables of cotrain's write it
        if name not in classes:
            raise UserError(
                f"{path}: line {number} names the class {name!r}, which is not one of: {', '.join(classes)}"
            )
        if not np.isnan(shares[classes.index(name)]):
            raise UserError(f"{path}: line {number} names the class {name!r} again")
        shares[classes.index(name)] = _share(path, number, written)
    if absent := [name for name, share in zip(classes, shares, strict=True) if np.isnan(share)]:
        raise UserError(f"{path}: no share is given for the class {absent[0]}")
    if abs(shares.sum() - 1) > TOLERANCE:
        raise UserError(f"{path}: the shares sum to {shares.sum():g}; they must sum to 1")
    return shares / shares.sum()


def _share(path: Path, line: int, written: str) -> float:
    try:
        share = float(written)
    except ValueError:
        share = np.nan
    if not 0 < share <= 1:
        raise UserError(f"{path}: line {line} has the share {written!r}; a share is a number above 0, up to 1")
    return share
