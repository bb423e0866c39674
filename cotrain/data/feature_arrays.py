"""Datasets of features: from arrays, memory maps and sparse matrices to a `Dataset`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from cotrain.data.dataset import Dataset, check_known
from cotrain.data.feature_table import Column, Features, numbered
from cotrain.types import Unit, UserError


def from_features(
    values: Any,
    labels: ArrayLike,
    *,
    test: tuple[Any, ArrayLike] | None = None,
    columns: Sequence[Column | str] | None = None,
    classes: Sequence[str] | None = None,
    name: str = "features",
    source: str | None = None,
    layout: str = "arrays",
) -> Dataset:
    """Make a dataset from features (N, D), dense, memory-mapped or sparse, and integer labels, with -1 for unlabelled.

    `columns` names the columns; a `Column` with categories holds their numbers, from 0. `test` has rows and labels that
    are only for testing.
    """
    given, targets = numbers_of(name, values), _labels(name, labels)
    if len(targets) != given.shape[0]:
        raise UserError(f"{name} has {given.shape[0]} rows but {len(targets)} labels")
    trained = len(targets)
    features = Features(given, _columns(columns, given.shape[1]))
    if test is not None:
        more, more_targets = numbers_of(name, test[0]), _labels(name, test[1])
        if more.shape[1] != given.shape[1]:
            raise UserError(f"{name}: the test rows have {more.shape[1]} columns, the training rows {given.shape[1]}")
        features = features.followed_by(Features(more, features.columns))
        targets = np.concatenate([targets, more_targets])
    features.check_finite(name)
    most = int(targets.max(initial=-1))
    names = tuple(map(str, classes)) if classes is not None else tuple(map(str, range(most + 1)))
    if targets.min(initial=0) < -1 or most >= len(names):
        raise UserError(f"{name}: labels must be from 0 to {len(names) - 1}, or -1 for unlabelled rows")
    check_known(name, targets[:trained], names, Unit.ROW)
    dataset = dataset_of(features, targets, names, name=name, test=len(targets) - trained)
    return replace(dataset, hashes=features.hashes(), source=source, layout=layout)


def dataset_of(
    features: Features, labels: NDArray[np.int64], classes: tuple[str, ...], *, name: str = "features", test: int = 0
) -> Dataset:
    """A dataset of checked features whose last `test` rows are for testing. It has no hashes: nothing is compared."""
    trained = len(labels) - test
    return Dataset(
        name=name,
        images=features,
        hashes=np.zeros(0, np.uint64),
        labels=torch.from_numpy(labels),
        classes=classes,
        train=np.arange(trained),
        valid=np.arange(0),
        test=np.arange(trained, len(labels)),
        mirror=False,
    )


def numbers_of(name: str, values: Any) -> Any:
    """A matrix of numbers: an array or a memory map as it is, anything sparse as CSR."""
    if hasattr(values, "tocsr"):
        from scipy import sparse  # slow to import

        found = sparse.csr_array(values)
    else:
        found = values if isinstance(values, np.ndarray) else np.asarray(values)
    if found.ndim != 2 or found.dtype.kind not in "biuf":
        raise UserError(f"{name} must be numbers (rows, columns), not {found.dtype} of shape {tuple(found.shape)}")
    if 0 in found.shape:
        raise UserError(f"{name} has {found.shape[0]} rows and {found.shape[1]} columns; both are needed")
    return found


def _labels(name: str, labels: ArrayLike) -> NDArray[np.int64]:
    targets = np.asarray(labels)
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise UserError(f"{name}: labels must be one integer per row, not {targets.dtype} of shape {targets.shape}")
    return targets.astype(np.int64)


def _columns(columns: Sequence[Column | str] | None, count: int) -> tuple[Column, ...]:
    if columns is None:
        return numbered(count)
    found = tuple(each if isinstance(each, Column) else Column(str(each)) for each in columns)
    if len(found) != count:
        raise UserError(f"there are {len(found)} column names for {count} columns")
    return found
