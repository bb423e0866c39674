"""What a model's outputs say about it: confusions, classes, heads. Of images whose labels are known.

Heads H, images n, classes C. What cannot be known (no image of a class, say) is nan.
"""

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


def disagreement(predicted: Tensor) -> Numbers:
    """(H, n) classes -> (H, H) percent of the images of which two heads say different things."""
    return 100 * (predicted[:, None] != predicted[None]).double().mean(dim=-1).numpy()


@dataclass(frozen=True)
class Vote:
    """The most frequent class among the heads, by how many heads chose it."""

    agreeing: int
    images: int
    error: float  # percent


def votes(predicted: Tensor, labels: Tensor, classes: int) -> list[Vote]:
    """From all heads agreeing downwards; ties go to the lowest class."""
    count, winner = torch.nn.functional.one_hot(predicted, classes).sum(dim=0).max(dim=-1)
    found = []
    for agreeing in range(len(predicted), 0, -1):
        chosen = count == agreeing
        if images := int(chosen.sum()):
            wrong = int((winner[chosen] != labels[chosen]).sum())
            found.append(Vote(agreeing, images, 100 * wrong / images))
    return found


def _share(part: Counts, whole: Counts) -> Numbers:
    return 100 * np.divide(part, whole, where=whole > 0, out=np.full(len(whole), np.nan))
