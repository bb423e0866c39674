"""Errors by class, for C classes. A rate without images to compute it from is NaN."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.evaluation.outputs import error_interval

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Counts:
    """(C, C) numbers of images, by label (rows) and predicted class (columns)."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes).numpy()


@dataclass(frozen=True)
class ByClass:
    """One number per class; error, precision and recall in percent, the recall with its 95 % confidence interval."""

    images: Counts  # labelled as this class
    predicted: Counts  # predicted as this class
    error: Numbers
    precision: Numbers
    recall: Numbers
    low: Numbers
    high: Numbers

    @property
    def balanced_error(self) -> float:
        """The mean error of the classes that have images: a rare class counts as much as a frequent one."""
        return float(np.nanmean(self.error)) if self.images.any() else math.nan


def by_class(confused: Counts) -> ByClass:
    right, images, predicted = confused.diagonal(), confused.sum(axis=1), confused.sum(axis=0)
    recall = _percent(right, images)
    pairs = zip(right.tolist(), images.tolist(), strict=True)
    bounds = [error_interval(hits, count) if count else (math.nan, math.nan) for hits, count in pairs]
    low, high = np.array(bounds).T
    return ByClass(images, predicted, 100 - recall, _percent(right, predicted), recall, low, high)


@dataclass(frozen=True)
class Confusion:
    label: int
    predicted: int
    images: int


def worst_confusions(confused: Counts, most: int = 10) -> list[Confusion]:
    """The pairs of classes that are confused most often."""
    mistakes = confused.copy()
    np.fill_diagonal(mistakes, 0)
    order = np.argsort(-mistakes, axis=None, kind="stable")[:most]
    pairs = zip(*np.unravel_index(order, mistakes.shape), strict=True)
    return [
        Confusion(int(label), int(predicted), int(mistakes[label, predicted]))
        for label, predicted in pairs
        if mistakes[label, predicted]
    ]


def _percent(part: Counts, whole: Counts) -> Numbers:
    return 100 * np.divide(part, whole, where=whole > 0, out=np.full(len(whole), np.nan))
