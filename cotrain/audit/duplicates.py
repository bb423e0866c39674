"""Duplicate images: images with the same pixels after resizing, as the network sees them."""

import numpy as np
from numpy.typing import NDArray

from cotrain.data.dataset import UNLABELLED, Dataset
from cotrain.data.split import Split


def duplicates(dataset: Dataset) -> list[NDArray[np.int64]]:
    """Groups of rows with the same pixels."""
    rows = np.sort(np.concatenate([dataset.train, dataset.valid, dataset.test]))
    order = rows[np.argsort(dataset.hashes[rows], kind="stable")]
    starts = np.flatnonzero(np.diff(dataset.hashes[order]))
    return [group for group in np.split(order, starts + 1) if len(group) > 1]


def contradicts(dataset: Dataset, group: NDArray[np.int64]) -> bool:
    """Whether rows with the same pixels have different labels."""
    return len(np.setdiff1d(dataset.labels.numpy()[group], [UNLABELLED])) > 1


def leaks(dataset: Dataset, split: Split) -> NDArray[np.int64]:
    """Test rows whose pixels also occur in the training set, labelled or not."""
    test = np.asarray(split.test, np.int64)
    return test[np.isin(dataset.hashes[test], dataset.hashes[split.trained_on])]
