"""Made-up features of a frozen trunk: classes and junk in directions of their own."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotrain import Dataset, from_arrays
from cotrain.audit.neighbours import Neighbours, Similarity, neighbours_of
from cotrain.data import Split
from cotrain.data.bank import Bank

FEATURES, CLASSES, IMAGES, LABELS = 24, 3, 60, 10  # images and labels of each class


@dataclass(frozen=True)
class Clusters:
    dataset: Dataset
    split: Split
    junk: NDArray[np.int64]
    known: Neighbours

    @property
    def bank(self) -> Bank:
        assert self.dataset.bank is not None
        return self.dataset.bank

    def draw(self, of_class: int | None, count: int, seed: int) -> NDArray[np.float32]:
        return features(of_class, count, seed)


def features(of_class: int | None, count: int, seed: int) -> NDArray[np.float32]:
    """Non-negative, as after a ReLU. Junk (None) has features that no class has."""
    centre = np.zeros(FEATURES)
    start = 3 * CLASSES if of_class is None else 3 * of_class
    centre[start : start + 3] = 3
    return np.maximum(centre + np.random.default_rng(seed).normal(0, 0.6, (count, FEATURES)), 0).astype(np.float32)


def bank_of(folder: Path, features: NDArray[np.floating], hashes: NDArray[np.uint64]) -> Bank:
    """(n, C) plain features, in memory."""
    stored = features.astype(np.float16)[:, :, None, None]
    return Bank(folder, hashes, stored.shape[1:], weak=1, strong=1, read=lambda name, rows: stored[rows])


def clusters(folder: Path, junk: int, *, labels: NDArray[np.int64] | None = None) -> Clusters:
    """`labels` replace the true ones, class by class."""
    parts = [features(index, IMAGES, seed=index) for index in range(CLASSES)]
    every = np.concatenate([*parts, features(None, junk, seed=99)])
    true = np.repeat(np.arange(CLASSES), IMAGES) if labels is None else labels
    images = np.zeros((len(every), 2, 2, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.divmod(np.arange(len(every)), 256)
    dataset = from_arrays(images, np.concatenate([true, np.full(junk, -1)]), classes=("a", "b", "c"), name="clusters")
    bank = bank_of(folder, every, dataset.hashes)
    dataset = replace(dataset, bank=bank)
    labelled = np.concatenate([index * IMAGES + np.arange(LABELS) for index in range(CLASSES)])
    split = Split(
        name="clusters",
        source=None,
        fingerprint=dataset.fingerprint,
        labelled=tuple(labelled.tolist()),
        unlabelled=tuple(range(len(every))),
        valid=(),
        test=(),
    )
    known = neighbours_of(Similarity(bank), dataset, split, 0)
    return Clusters(dataset, split, np.arange(CLASSES * IMAGES, len(every)), known)
