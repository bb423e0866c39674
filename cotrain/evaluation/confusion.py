"""What a model's outputs say about its C classes. What cannot be known (no image of a class, say) is nan."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Counts:
    """(C, C) images, by label and by what was said of them."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes).numpy()


@dataclass(frozen=True)
class ByClass:
    """One number for each class, in percent."""

    images: Counts
    said: Counts  # images that were given the class
    error: Numbers
    precision: Numbers
    recall: Numbers


def by_class(confused: Counts) -> ByClass:
    right, images, said = confused.diagonal(), confused.sum(axis=1), confused.sum(axis=0)
    recall = _share(right, images)
    return ByClass(images, said, 100 - recall, _share(right, said), recall)


@dataclass(frozen=True)
class Confusion:
    label: int
    said: int
    images: int


def worst_confusions(confused: Counts, most: int = 10) -> list[Confusion]:
    """The pairs of classes that are mistaken most often."""
    mistakes = confused.copy()
    np.fill_diagonal(mistakes, 0)
    order = np.argsort(-mistakes, axis=None, kind="stable")[:most]
    pairs = zip(*np.unravel_index(order, mistakes.shape), strict=True)
    return [
        Confusion(int(label), int(said), int(mistakes[label, said])) for label, said in pairs if mistakes[label, said]
    ]


def _share(part: Counts, whole: Counts) -> Numbers:
    return 100 * np.divide(part, whole, where=whole > 0, out=np.full(len(whole), np.nan))
