"""Labels that may be wrong: labelled images whose label is disputed by what was learned without it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.ops import ensemble_probabilities
from cotrain.runs.scores import Outputs

Floats = NDArray[np.float64]
SMALLEST = 1e-12
TEMPERATURES = np.geomspace(0.3, 20, 40)
SMALLEST_SCORE = 1e-6
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


def label_weights(scores: Floats, labels: NDArray[np.int64], trust: float) -> Floats:
    """(L,) how much each label counts, by held-out scores (L, C), such as what reaches the image from other labels.

    A label counts as it is probable to be right, in relation to the others of its class: the mean of every class is 1.
    Otherwise a class that is hard to recognise, whose labels are all disputed, would be lost.
    """
    probabilities = (scores + SMALLEST_SCORE) / (scores + SMALLEST_SCORE).sum(axis=1, keepdims=True)
    weights = probability_right(softened(probabilities, labels, trust), labels, trust)
    mean = np.bincount(labels, weights) / np.maximum(np.bincount(labels), 1)
    return weights / mean[labels]


def probability_right(probabilities: Floats, labels: NDArray[np.int64], trust: float) -> Floats:
    """(L,) if a share `trust` of the labels is right, and the others are any other class with the same probability."""
    of_label = probabilities[np.arange(len(labels)), labels]
    right, wrong = trust * of_label, (1 - trust) * (1 - of_label) / (probabilities.shape[1] - 1)
    return right / (right + wrong)


def softened(probabilities: Floats, labels: NDArray[np.int64], trust: float) -> Floats:
    """(L, C) at the temperature at which the labels are most probable, if a share `trust` of them is right.

    The more labels are disputed beyond those that are expected to be wrong, the softer: a judge that often errs says
    little.
    """
    logs, rows = torch.from_numpy(probabilities).clamp(min=SMALLEST).log(), np.arange(len(labels))
    tried = [(logs / temperature).softmax(dim=1).numpy() for temperature in TEMPERATURES]
    of_label = np.array([each[rows, labels] for each in tried])
    likelihood = np.log(trust * of_label + (1 - trust) * (1 - of_label) / (logs.shape[1] - 1) + SMALLEST).sum(axis=1)
    return tried[int(likelihood.argmax())]
