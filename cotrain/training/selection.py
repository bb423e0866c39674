"""What training uses: without images that seem to belong to no class, and each label as far as it can be trusted.

It needs the features of a frozen trunk, and takes a second or two before training. Methods do not know of it: they get
a smaller split, batches in which doubtful labels are rarer, and the class shares if these are known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotrain.audit.neighbours import Neighbours
from cotrain.audit.outliers import by_neighbours, share_of_strangers, training_p_values
from cotrain.audit.shares import Shares, estimate_shares, read_shares
from cotrain.audit.suspects import label_weights
from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.data.bank import Bank

Rows = NDArray[np.int64]
Weights = NDArray[np.float64]
SUSPICIOUS = 0.05  # share of images of no class from which on any are left out: without junk, it would cost a little


def _no_rows() -> Rows:
    return np.empty(0, np.int64)


class Used(NamedTuple):
    """What training needs."""

    split: Split
    shares: Shares | None = None  # (C,) of the classes among the unlabelled images; None: nothing is assumed
    weights: Weights | None = None  # (L,) of the labels; None: all 1


@dataclass(frozen=True)
class Selection:
    """What training uses, and what it leaves out."""

    used: Used
    left_out: Rows = field(default_factory=_no_rows)  # unlabelled images that seem to belong to no class


def selection_of(
    config: Config, dataset: Dataset, split: Split, bank: Bank | None, neighbours: Callable[[], Neighbours]
) -> Selection:
    """The selection for these settings; without a bank, everything is used."""
    robust, shares = config.robust, known_shares(config, dataset)
    if bank is None or not config.method.views.any_unlabelled:
        return Selection(Used(split, shares))
    if not (robust.false_alarms or robust.trust_labels < 1 or robust.class_shares == "estimate"):
        return Selection(Used(split, shares))
    known = neighbours()
    belonging = by_neighbours(known)
    others = np.setdiff1d(split.unlabelled, split.labelled).astype(np.int64)
    p_values = training_p_values(known, belonging, bank, others)
    junk = share_of_strangers(p_values, len(known.labelled)) >= SUSPICIOUS
    left_out = others[p_values <= robust.false_alarms] if junk else _no_rows()
    if len(np.setdiff1d(split.unlabelled, left_out)) == 0:  # training needs some, and `fit` warns
        left_out = _no_rows()
    if robust.class_shares == "estimate":
        kept = np.isin(known.rows, np.setdiff1d(others, left_out))
        guesses = known.guesses[kept if kept.any() else known.labelled]
        shares = estimate_shares(known.labels, known.held_out_guesses, guesses, len(dataset.classes)).share
    chosen = split.model_copy(update={"unlabelled": tuple(np.setdiff1d(split.unlabelled, left_out).tolist())})
    weights = label_weights(known.held_out, known.labels, robust.trust_labels) if robust.trust_labels < 1 else None
    return Selection(Used(chosen, shares, weights), left_out)


def known_shares(config: Config, dataset: Dataset) -> Shares | None:
    """The shares that the user gave."""
    classes = dataset.classes
    match config.robust.class_shares:
        case "unknown" | "estimate":
            return None
        case "equal":
            return np.full(len(classes), 1 / len(classes))
        case file:
            return read_shares(Path(file), classes)
