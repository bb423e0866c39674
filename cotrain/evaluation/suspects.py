"""Labels that may be wrong: labelled images whose label is disputed by what was learned without it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cotrain.ops import ensemble_probabilities
from cotrain.runs.scores import Outputs

SMALLEST = 1e-12
IMPOSSIBLE = 0.02  # probability of a disputed label, at most


@dataclass(frozen=True)
class Suspect:
    """A label that the heads do not predict."""

    row: int
    label: int
    proposed: int
    of_label: float  # probability
    of_proposed: float
    disputed: bool  # a clear case


def suspects_of(held_out: Outputs, rule: str) -> list[Suspect]:
    """The labels that heads trained without them do not predict, the most doubtful first."""
    probabilities = ensemble_probabilities(held_out.logits, rule).numpy()
    labels, rows = held_out.labels.numpy(), np.arange(len(held_out.rows))
    proposed, amount = probabilities.argmax(axis=1), dispute(probabilities, labels)
    clear = is_disputed(held_out.logits, probabilities, labels)
    order = sorted(rows[proposed != labels].tolist(), key=lambda place: (not clear[place], -amount[place]))
    return [
        Suspect(
            int(held_out.rows[place]),
            int(labels[place]),
            int(proposed[place]),
            float(probabilities[place, labels[place]]),
            float(probabilities[place].max()),
            bool(clear[place]),
        )
        for place in order
    ]


def is_disputed(logits: Tensor, probabilities: NDArray, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(L,) whether a label is clearly disputed, by held-out logits (H, L, C) and the ensemble's probabilities (L, C).

    All heads agree on another class, with at least the probability that images labelled with that class have on average
    (confident learning: Northcutt, Jiang and Chuang, 2021), and the label itself is nearly impossible.
    """
    rows, proposed = np.arange(len(labels)), probabilities.argmax(axis=1)
    of_label = probabilities[rows, labels]
    images = np.bincount(labels, minlength=probabilities.shape[1])
    usual = np.bincount(labels, of_label, minlength=len(images)) / np.maximum(images, 1)
    agreed = (logits.argmax(dim=-1).numpy() == proposed).all(axis=0)
    clear = (probabilities[rows, proposed] >= usual[proposed]) & (of_label <= IMPOSSIBLE)
    return (proposed != labels) & agreed & clear


def dispute(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """(L,) how far another class beats the label: the log ratio of their held-out scores (L, C); above 0, disputed.

    Nothing can be said about the only label of a class: no other image shows what the class looks like.
    """
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = 0
    found = np.log(others.max(axis=1) + SMALLEST) - np.log(scores[rows, labels] + SMALLEST)
    return np.where(np.bincount(labels, minlength=scores.shape[1])[labels] > 1, found, -np.inf)


def most_disputed(scores: NDArray[np.float64], labels: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """The places of the labels that are disputed most, at most this share of all and at most half of each class."""
    amount = dispute(scores, labels)
    left = np.bincount(labels, minlength=scores.shape[1]) // 2
    found: list[int] = []
    for place in np.argsort(-amount, kind="stable").tolist():
        if len(found) >= round(share * len(labels)) or amount[place] <= 0:
            break
        if left[labels[place]] > 0:
            left[labels[place]] -= 1
            found.append(place)
    return np.sort(np.array(found, np.int64))
