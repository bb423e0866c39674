"""The types that the page and the learning share: what people have said, and what one training made of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Order = Literal["informative", "random"]


@dataclass(frozen=True)
class Known:
    """The labels so far, as a model learns them: images are rows of the dataset, classes are numbers of the page."""

    classes: Mapping[int, str]  # number -> name, in the order of the page
    labels: Mapping[int, int]  # row -> class, in the order of labelling; audit answers included
    strangers: frozenset[int] = frozenset()  # rows marked "does not belong"
    audit: Mapping[int, bool] = field(default_factory=dict)  # row -> was the guess right when asked; oldest first
    set_aside: frozenset[int] = field(default=frozenset(), compare=False)  # rows that were skipped or are in conflict


@dataclass(frozen=True)
class Point:
    """One point of the curve, in percent. The interval is a confidence interval only for an audit; see `calibrated`."""

    labels: int
    error: float
    low: float
    high: float
    by: Literal["cross-validation", "audit"]


@dataclass(frozen=True)
class Disputed:
    """A label that heads trained without it dispute."""

    row: int
    label: int  # class
    proposed: int  # class
    probability: float  # of the proposed class


@dataclass(frozen=True)
class Estimate:
    """What cross-validation says about one set of labels and the model trained on them."""

    point: Point | None  # None: too few labels
    temperature: float  # fitted on held-out labels
    disputed: tuple[Disputed, ...]  # the clearest first
    paying: bool | None
    advice: str


@dataclass(frozen=True)
class Snapshot:
    """What one training gave, for all rows of the dataset, with the latest estimate."""

    labels: int  # number of labels it was trained on
    classes: tuple[int, ...]  # of the columns
    ensemble: NDArray[np.float32]  # (n, C) as trained; 0 for a class without labels and for unreadable images
    temperature: float
    heads: NDArray[np.int64]  # (H, n) column of each head
    doubt: NDArray[np.float32]  # (n,) entropy of the ensemble in nats: the heads' own doubt and their disagreement
    stranger_score: NDArray[np.float32]  # (n,) higher: less likely to belong to any class
    disputed: tuple[Disputed, ...]  # the clearest first
    curve: tuple[Point, ...]
    paying: bool | None  # whether more labels still pay; None: too early to say
    advice: str  # the same in one sentence
    seconds: float

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """(n, C) the ensemble's probabilities at the temperature."""
        powers = self.ensemble ** np.float32(1 / self.temperature)
        return powers / np.maximum(powers.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
