"""A few of the digits at half the size, for runs that are over soon: most of their time is evaluation."""

import os
from functools import cache
from pathlib import Path

import numpy as np

from cotrain import Dataset, from_arrays, open_data

TRAIN, TEST = 200, 100  # images


@cache
def few_digits() -> Dataset:
    digits = open_data("digits")
    train, test = (
        (digits.images[rows, ::2, ::2], digits.labels[rows]) for rows in (digits.train[:TRAIN], digits.test[:TEST])
    )
    return from_arrays(*train, test=test, name="digits", source="digits", mirror=False)


@cache
def few_digits_file() -> Path:
    """The same in a file, for the command line."""
    digits = few_digits()
    images, labels = digits.images.numpy(), digits.labels.numpy()
    parts = {"train": digits.train, "test": digits.test}
    arrays = {f"{part}_images": images[rows] for part, rows in parts.items()}
    path = Path(os.environ["COTRAIN_HOME"]) / "few-digits.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **arrays, **{f"{part}_labels": labels[rows] for part, rows in parts.items()})
    return path
