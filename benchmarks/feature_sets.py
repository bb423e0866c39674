"""The real sets of features of `benchmarks.features`: what comes with scikit-learn, the text of docs/examples/text.py,
and the features that EfficientNet-Lite0 computes for photographs."""

import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn import datasets
from sklearn.model_selection import train_test_split

from cotrain.config.defaults import configured, opened
from cotrain.training.experiment import Prepared

TEST_SHARE = 0.3  # where no test rows are given
MOST = 3000  # photographs for training; a third as many for testing
TABLES = {
    "digits": datasets.load_digits,
    "breast_cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}
TEXT = Path(__file__).parent.parent / "docs" / "examples" / "text.py"


class Rows(NamedTuple):
    x: NDArray
    y: NDArray[np.int64]
    test_x: NDArray
    test_y: NDArray[np.int64]


@cache
def feature_set(name: str) -> Rows:
    """Training and test rows, the same for every seed; the name of a table, `text`, or a file or folder of images."""
    if name in TABLES:
        return divided(*TABLES[name](return_X_y=True))
    if name == "text":
        example = runpy.run_path(str(TEXT))
        texts, y, _ = example["texts_of_scipy"]()
        return divided(example["embedded"](texts), y)
    return photographs(name)


def divided(x: NDArray, y: NDArray) -> Rows:
    train, test = train_test_split(np.arange(len(y)), test_size=TEST_SHARE, stratify=y, random_state=0)
    return Rows(x[train], y[train], x[test], y[test])


def photographs(source: str) -> Rows:
    """The features of the images as they are."""
    console = Console()
    dataset = opened(source, None, {}, None, console)
    rng = np.random.default_rng(0)
    train, test = (rng.permutation(rows)[:most] for rows, most in ((dataset.train, MOST), (dataset.test, MOST // 3)))
    drawn = replace(dataset, train=train, test=test)
    bank = Prepared(configured(dataset, None, "paper", {}), drawn, console=console, augmented=False).bank
    assert bank is not None
    labels = dataset.labels.numpy()
    x = bank.plain(np.concatenate([train, test])).flatten(1).numpy()
    if not len(test):
        return divided(x, labels[train])
    return Rows(x[: len(train)], labels[train], x[len(train) :], labels[test])
