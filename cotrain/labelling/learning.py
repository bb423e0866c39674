"""What the model learns while people label: predictions for all images, the error to expect, and what to ask next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cotrain.config import Config
from cotrain.data import Dataset

Order = Literal["informative", "random"]


@dataclass(frozen=True)
class Known:
    """What people have said so far. Keys are rows of the dataset. Rows in conflict are in none of these."""

    classes: tuple[str, ...]  # in the order of the page
    labels: Mapping[int, int]  # row -> index of its class; all labels to train on, audit answers included
    strangers: frozenset[int] = frozenset()  # rows marked "does not belong"
    audit: Mapping[int, bool] = field(default_factory=dict)  # row -> was the model's guess right when it was asked


@dataclass(frozen=True)
class Point:
    """One point of the curve; error and interval in percent."""

    labels: int
    error: float
    low: float
    high: float
    by: Literal["cross-validation", "audit"]


@dataclass(frozen=True)
class Disputed:
    """A label that heads trained without it dispute."""

    row: int
    label: int
    proposed: int
    probability: float  # of the proposed class


@dataclass(frozen=True)
class Snapshot:
    """What one training gave."""

    labels: int  # number of labels it was trained on
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]  # (n, C) of the ensemble, all rows of the dataset
    heads: NDArray[np.int64]  # (H, n) class of each head
    stranger_score: NDArray[np.float32]  # (n,) higher: less likely to belong to any class
    disputed: tuple[Disputed, ...]
    curve: tuple[Point, ...]
    paying: bool | None  # whether more labels still pay; None: too early to say
    advice: str  # the same in one sentence
    seconds: float


class Teacher:
    """Owns the dataset with its bank and the quick setting of the config. Same labels, same snapshot."""

    def __init__(self, dataset: Dataset, config: Config, seed: int = 0) -> None:
        self.dataset, self.config, self.seed = dataset, config, seed

    def first(self, count: int, order: Order = "informative") -> list[int]:
        """Rows to ask when there are no labels."""
        raise NotImplementedError

    def train(self, known: Known, earlier: Snapshot | None = None, *, estimate: bool = False) -> Snapshot | None:
        """None with fewer than two labelled classes. `estimate` adds a point to the curve and disputed labels."""
        raise NotImplementedError

    def next(
        self,
        snapshot: Snapshot | None,
        known: Known,
        hidden: frozenset[int],
        count: int,
        order: Order = "informative",
    ) -> list[int]:
        """Rows to ask next, best first, none of them in `hidden`."""
        raise NotImplementedError

    def audit(self, known: Known, count: int, hidden: frozenset[int] = frozenset()) -> list[int]:
        """Uniformly random rows without a label, for the audit."""
        raise NotImplementedError
