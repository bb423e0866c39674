"""Images that belong to none of the classes.

Each image gets a score, which becomes a conformal p-value by comparison with the held-out scores of the labelled
images: an image of a class has a p-value of at most r with probability at most r. So r is the false-alarm rate of that
threshold. L labels allow no rate below 1 / (L + 1).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.audit.neighbours import NEIGHBOURS, Floats, Neighbours, Projection
from cotrain.data.bank import Bank
from cotrain.data.kinds import evenly
from cotrain.runs.checkpoint import read_tensors, write_tensors
from cotrain.types import UserError

REFERENCES = 4_000  # training images that an image is compared with, at most
AT_ONCE = 1_024
CHANCE = 0.05
TYPICAL = 0.5  # no image with a larger p-value is counted as strange
HELD_OUT = "held_out"
DIMENSIONS = {"directions": 2, "points": 2, "reach": 1, HELD_OUT: 1}


@dataclass(frozen=True)
class ByNeighbours:
    """On the features of a frozen trunk: how much of the labels reaches the nearest training images of an image."""

    projection: Projection
    points: Floats  # (m, d) of some training images
    reach: Floats  # (m,) how much of the labels reaches each of them
    held_out: Floats  # (L,) scores of the labelled images, ascending; each without the labels of its fold

    def p_values(self, features: Floats, logits: Tensor) -> NDArray[np.float64]:
        """(n, D) features of new images -> (n,)."""
        if features.shape[1] != len(self.projection.directions):
            raise UserError("belonging.safetensors is not of this model: it compares other features; train it again")
        return p_values(_scores(self.projection(features), self.points, self.reach), self.held_out)


@dataclass(frozen=True)
class ByHeads:
    """For a network from scratch: the highest logit, averaged over the heads. Unlike a probability, it has no limit."""

    held_out: Floats  # (L,) of images whose labels the network may have been trained on, ascending

    def p_values(self, features: Floats, logits: Tensor) -> NDArray[np.float64]:
        """(H, n, C) logits of new images -> (n,)."""
        return p_values(_strength(logits), self.held_out)


Belonging = ByNeighbours | ByHeads


def by_heads(labelled: Tensor) -> ByHeads:
    """From the logits (H, L, C) of labelled images."""
    return ByHeads(np.sort(_strength(labelled)))


def _strength(logits: Tensor) -> Floats:
    """(n,) rounded, because the last bits depend on which images are predicted together."""
    return logits.float().mean(dim=0).max(dim=-1).values.numpy().round(3)


def by_neighbours(known: Neighbours) -> ByNeighbours:
    references = _references(known)
    points, total = known.points[references], known.mass.sum(axis=1)
    held_out = np.empty(len(known.labelled), np.float32)
    for number, reach in enumerate(known.reach):
        members = np.flatnonzero(known.fold == number)
        own = known.labelled[members]
        held_out[members] = _scores(known.points[own], points, reach[references], np.searchsorted(references, own))
    return ByNeighbours(known.projection, points, total[references].astype(np.float32), np.sort(held_out))


def training_p_values(
    known: Neighbours, belonging: ByNeighbours, bank: Bank, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(n,) for training images, none of which is its own neighbour; 1 for labelled ones."""
    references = known.rows[_references(known)]
    own = np.where(np.isin(rows, references), np.searchsorted(references, rows), -1)
    points = known.projection.of_rows(bank, rows)
    found = p_values(_scores(points, belonging.points, belonging.reach, own), belonging.held_out)
    found[np.isin(rows, known.rows[known.labelled])] = 1
    return found


def p_values(scores: Floats, held_out: Floats) -> NDArray[np.float64]:
    """The share of labelled images that look at least as strange, counting the image itself among them."""
    return (1 + np.searchsorted(held_out, scores, side="right")) / (len(held_out) + 1)


def smallest_rate(labels: int) -> float:
    """The smallest p-value that so many labelled images allow."""
    return 1 / (labels + 1)


def share_of_strangers(p_values: NDArray[np.float64], labels: int) -> float:
    """A low estimate of the share of images that belong to no class: those that are too many below some p-value."""
    rates = np.arange(1, max(round(TYPICAL * (labels + 1)), 1) + 1) / (labels + 1)
    below = np.searchsorted(np.sort(p_values), rates, side="right") / max(len(p_values), 1)
    return float(max(0.0, ((below - rates) / (1 - rates)).max()))


def are_too_many(p_values: NDArray[np.float64], labels: int) -> bool:
    """Whether chance would make so many images look strange at most once in 20 times, if all belonged to a class.

    Of n images, the number below the k-th smallest of L held-out scores is then beta-binomial, with k and L + 1 - k.
    """
    places = 2 ** np.arange(int(np.log2(max(TYPICAL * (labels + 1), 1))) + 1)
    below = np.searchsorted(np.sort(p_values), (places + 0.5) / (labels + 1))
    chances = _chance_of_at_least(below, len(p_values), places, labels + 1 - places)
    return bool(chances.min() * len(places) < CHANCE)


def _chance_of_at_least(
    counts: NDArray[np.int64], images: int, first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Of beta-binomial numbers. scipy.stats has this, but takes longer to import than all the rest."""
    from scipy.special import betaln, gammaln

    total = np.zeros(len(counts))
    for start in range(0, images + 1, AT_ONCE):
        each = np.arange(start, min(start + AT_ONCE, images + 1))[:, None]
        ways = gammaln(images + 1) - gammaln(each + 1) - gammaln(images - each + 1)
        chances = np.exp(ways + betaln(each + first, images - each + second) - betaln(first, second))
        total += np.where(each >= counts, chances, 0).sum(axis=0)
    return total


def write_belonging(path: Path, belonging: Belonging) -> None:
    arrays = {HELD_OUT: belonging.held_out}
    if isinstance(belonging, ByNeighbours):
        arrays |= {"directions": belonging.projection.directions}
        arrays |= {"points": belonging.points.astype(np.float16), "reach": belonging.reach}
    write_tensors(path, {name: torch.from_numpy(array) for name, array in arrays.items()}, {})


def read_belonging(path: Path) -> Belonging | None:
    """None if the run has no such file: it is older, or not finished."""
    if not path.exists():
        return None
    tensors, _ = read_tensors(path)
    arrays = {name: tensor.float().numpy() for name, tensor in tensors.items() if not tensor.is_complex()}
    dimensions = {name: array.ndim for name, array in arrays.items()}
    if dimensions == {HELD_OUT: 1}:
        return ByHeads(arrays[HELD_OUT])
    if dimensions == DIMENSIONS:
        directions, points, reach, held_out = (arrays[name] for name in DIMENSIONS)
        if directions.shape[1] == points.shape[1] and 0 < len(points) == len(reach):
            return ByNeighbours(Projection(directions), points, reach, held_out)
    raise UserError(f"{path} is damaged: it lacks arrays, or they do not fit one another")


def _references(known: Neighbours) -> NDArray[np.int64]:
    """Places of the labelled images and of as many others as there is room for, ascending."""
    others = np.setdiff1d(np.arange(len(known.rows)), known.labelled)
    room = max(REFERENCES - len(known.labelled), NEIGHBOURS)
    return np.union1d(known.labelled, evenly(others, room))


def _scores(points: Floats, references: Floats, reach: NDArray, own: NDArray[np.int64] | None = None) -> Floats:
    """(n,) the mean of similarity times reach over the nearest references; `own` (n,) is the image itself, or -1."""
    found = np.empty(len(points), np.float32)
    for start in range(0, len(points), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        likeness = points[part] @ references.T
        if own is not None:
            known = np.flatnonzero(own[part] >= 0)
            likeness[known, own[part][known]] = -1
        count = min(NEIGHBOURS, likeness.shape[1])
        nearest = np.argpartition(likeness, -count, axis=1)[:, -count:]
        near = np.maximum(np.take_along_axis(likeness, nearest, axis=1), 0)
        found[part] = (near * reach[nearest]).mean(axis=1)
    return found
