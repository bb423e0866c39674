"""What an image's neighbours say about it before any training, on the features of a frozen trunk.

The labels spread over a graph that joins similar images. How much of all labels reaches an image says whether it
belongs to any class; whose labels these are says which class. For a labelled image, its own label and the others of its
fold do not count, so what is said about it is as honest as what is said about an unlabelled one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cotrain.data import Dataset, Split
from cotrain.data.bank import Bank
from cotrain.data.kinds import evenly
from cotrain.graph import Graphs, reached

Floats = NDArray[np.float32]
DIMENSIONS = 128  # in which images are compared
MEASURED = 5_000  # images that set these, at most
AT_ONCE = 4_096  # images whose features are in memory
NEIGHBOURS = 10  # of each image in the graph
REACH = 0.9  # alpha, the share that each image takes from its neighbours
FOLDS = 10
NODES = 20_000  # unlabelled images in the graph, at most: its time grows with their square


@dataclass(frozen=True)
class Projection:
    """From features to points on a sphere, where images are compared.

    The features are neither centred nor scaled: an image of another kind has other features, not other deviations.
    """

    directions: Floats  # (D, d)

    def __call__(self, features: Floats) -> Floats:
        """(n, D) -> (n, d), of length 1."""
        points = features @ self.directions
        return points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-6)

    def of_rows(self, bank: Bank, rows: NDArray[np.int64]) -> Floats:
        parts = [self(pooled(bank, rows[at : at + AT_ONCE])) for at in range(0, len(rows), AT_ONCE)]
        return np.concatenate([np.empty((0, self.directions.shape[1]), np.float32), *parts])


def pooled(bank: Bank, rows: NDArray[np.int64]) -> Floats:
    """(n, D) features of the images as they are, pooled over the image."""
    return bank.plain(rows).mean(dim=(2, 3)).numpy()


def projection_of(features: Floats) -> Projection:
    """The directions in which features (n, D) of length 1 are largest: the projection keeps their inner products."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-6)
    _, directions = np.linalg.eigh(unit.T @ unit)
    return Projection(directions[:, -DIMENSIONS:].astype(np.float32))


@dataclass(frozen=True)
class Neighbours:
    """The training images as points, and what reaches each of them from the labels of the others.

    Of very many images, these are the labelled ones and a sample of the others.
    """

    rows: NDArray[np.int64]  # (n,) of the dataset, ascending
    projection: Projection
    points: Floats  # (n, d)
    labelled: NDArray[np.int64]  # (L,) places of the labelled images in `rows`
    labels: NDArray[np.int64]  # (L,)
    fold: NDArray[np.int64]  # (L,)
    mass: NDArray[np.float64]  # (n, C) from the labels of each class
    held_out: NDArray[np.float64]  # (L, C) the same for the labelled images, without the labels of their own fold
    reach: NDArray[np.float64]  # (folds, n) from all labels but those of a fold

    @property
    def guesses(self) -> NDArray[np.int64]:
        """(n,) the class of each image by its neighbours; a class with many labels has no advantage."""
        return self._likeliest(self.mass)

    @property
    def held_out_guesses(self) -> NDArray[np.int64]:
        """(L,) the same for the labelled images, without the labels of their own fold."""
        return self._likeliest(self.held_out)

    def _likeliest(self, mass: NDArray[np.float64]) -> NDArray[np.int64]:
        return (mass / np.maximum(np.bincount(self.labels, minlength=mass.shape[1]), 1)).argmax(axis=1)


class Similarity:
    """How alike the images of a bank are. Points and graph of the last images are kept: folds differ only in labels."""

    def __init__(self, bank: Bank, graphs: Graphs | None = None) -> None:
        self.bank, self.graphs = bank, graphs or Graphs()
        self._points: tuple[NDArray[np.int64], Projection, Floats] | None = None

    def points(self, rows: NDArray[np.int64]) -> tuple[Projection, Floats]:
        if self._points is None or not np.array_equal(self._points[0], rows):
            projection = projection_of(pooled(self.bank, evenly(rows, MEASURED)))
            self._points = rows, projection, projection.of_rows(self.bank, rows)
        return self._points[1:]


def neighbours_of(similarity: Similarity, dataset: Dataset, split: Split, seed: int) -> Neighbours:
    """The same split and seed give the same result."""
    others = np.setdiff1d(split.unlabelled, split.labelled)
    rows, classes = np.union1d(split.labelled, evenly(others, NODES)).astype(np.int64), len(dataset.classes)
    projection, points = similarity.points(rows)
    graph = similarity.graphs.of(torch.from_numpy(points), NEIGHBOURS)
    labelled = np.searchsorted(rows, split.labelled)
    labels = dataset.labels.numpy()[rows[labelled]]
    fold = stratified(labels, min(FOLDS, len(labels)), seed)
    mass, own = np.zeros((len(rows), classes)), np.zeros((len(labels), classes))
    reach = np.zeros((fold.max() + 1, len(rows)))
    for number in range(len(reach)):
        members = np.flatnonzero(fold == number)
        seeds, present = np.zeros((len(rows), classes)), np.unique(labels[members])
        seeds[labelled[members], labels[members]] = 1
        spread = np.zeros_like(seeds)
        spread[:, present] = reached(graph, seeds[:, present], REACH)
        mass += spread
        own[members], reach[number] = spread[labelled[members]], spread.sum(axis=1)
    held_out = np.maximum(mass[labelled] - own, 0)
    return Neighbours(rows, projection, points, labelled, labels, fold, mass, held_out, mass.sum(axis=1) - reach)


def stratified(labels: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """(L,) the fold of each label; every class is divided as evenly as possible."""
    shuffled = np.random.default_rng((seed, 11)).permutation(len(labels))
    fold = np.empty(len(labels), np.int64)
    fold[shuffled[np.argsort(labels[shuffled], kind="stable")]] = np.arange(len(labels)) % folds
    return fold
