"""Near-duplicates: images whose features are almost the same, such as a photograph saved twice or slightly cropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotrain.audit.neighbours import pooled
from cotrain.data.bank import Bank
from cotrain.data.dataset import UNLABELLED

SAME = 0.95  # cosine of the features, at least; different photographs of a class rarely reach it
AT_ONCE = 1_024


@dataclass(frozen=True)
class Pair:
    first: int  # rows of the dataset
    second: int
    likeness: float


def near_duplicates(bank: Bank, rows: NDArray[np.int64], hashes: NDArray[np.uint64]) -> list[Pair]:
    """Pairs of images, most alike first, without those that are equal pixel by pixel."""
    parts = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
    unit = [_unit(pooled(bank, part)) for part in parts]
    found = []
    for place, some in enumerate(unit):
        for other in range(place, len(unit)):
            likeness = some @ unit[other].T
            for first, second in np.argwhere(likeness >= SAME).tolist():
                pair = int(parts[place][first]), int(parts[other][second])
                if pair[0] < pair[1] and hashes[pair[0]] != hashes[pair[1]]:
                    found.append(Pair(*pair, float(likeness[first, second])))
    return sorted(found, key=lambda pair: (-pair.likeness, pair.first, pair.second))


def contradicting(pairs: Sequence[Pair], labels: NDArray[np.int64]) -> list[Pair]:
    """Those whose labels differ."""
    return [
        pair for pair in pairs if UNLABELLED not in (known := labels[[pair.first, pair.second]]) and len({*known}) > 1
    ]


def across(pairs: Sequence[Pair], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of `second` that are near-duplicates of one of `first`."""
    both = {(pair.first, pair.second) for pair in pairs} | {(pair.second, pair.first) for pair in pairs}
    return np.intersect1d(second, [own for other, own in both if other in {*first.tolist()}]).astype(np.int64)


def _unit(features: NDArray[np.float32]) -> NDArray[np.float32]:
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-6)
