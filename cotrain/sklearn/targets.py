"""What the classifiers share: labels with unlabelled rows among them, seeds, threads and lines on the screen."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch
from joblib import effective_n_jobs
from numpy.typing import NDArray
from rich.console import Console
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cotrain.data.columns import check_table, is_missing
from cotrain.types import UserError

UNLABELLED = -1


def encoded(estimator: Any, y: Any) -> tuple[NDArray, NDArray[np.int64]]:
    """The classes in order, and the number of each row's class, -1 for unlabelled rows."""
    name = type(estimator).__name__
    check_table(y, "y")
    if y is None:
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    try:
        given = column_or_1d(y, warn=True)
        assert_all_finite(given, input_name="y", estimator_name=name)
        if given.dtype.kind == "O" and any(map(is_missing, given.tolist())):
            raise ValueError("Input y contains NaN.")
    except ValueError as error:
        if "NaN" not in str(error):
            raise
        raise ValueError(f"{str(error).rstrip('.')}; mark unlabelled samples by {UNLABELLED}") from error
    labelled = is_labelled(given)
    if not labelled.any():
        raise ValueError(f"{name} needs labelled samples, but every sample in y is unlabelled ({UNLABELLED}).")
    known = np.array(given[labelled].tolist()) if given.dtype.kind == "O" else given[labelled]
    check_classification_targets(known)
    classes, numbers = np.unique(known, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"{name} needs samples of at least 2 classes in the data, but the data contains only one class: "
            f"{classes[0]!r}"
        )
    codes = np.full(len(given), UNLABELLED, np.int64)
    codes[labelled] = numbers
    return classes, codes


def is_labelled(y: NDArray) -> NDArray[np.bool_]:
    """Rows whose label is not -1. Among strings, "-1" is the mark as well: numpy turns -1 into it."""
    if y.dtype.kind in "US":
        return y.astype(np.str_) != str(UNLABELLED)
    if y.dtype.kind == "O":
        marks = (UNLABELLED, str(UNLABELLED))
        return np.array([not any(value is mark or value == mark for mark in marks) for value in y.tolist()], np.bool_)
    return y != UNLABELLED


def changes_of(estimator: Any, seed: int) -> dict[str, Any]:
    """The settings that the classifier was given, by dotted key."""
    settings = {} if estimator.settings is None else estimator.settings
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise UserError(f"settings={settings!r}: write a dict by dotted keys, such as {{'optim.steps': 300}}, or None")
    method = {} if estimator.method is None else {"method": estimator.method}
    return {"run.seed": seed, **method, **settings}


def seed_of(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31))


@contextmanager
def threads(n_jobs: int | None) -> Iterator[None]:
    """As many threads of torch as jobs are asked for, at most one per core; None leaves their number."""
    if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise UserError(f"n_jobs={n_jobs!r}: the number of threads is a whole number, -1 for one per core, or None")
    before = torch.get_num_threads()
    if n_jobs is not None:
        torch.set_num_threads(min(effective_n_jobs(int(n_jobs)), os.cpu_count() or 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def console_of(verbose: int | bool) -> Console:
    return Console(quiet=not verbose)
