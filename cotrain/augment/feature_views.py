"""Views of rows of features that know nothing of what the features mean.

All random decisions are drawn here from one generator; `changed` only carries them out. Numbers are standardised, so
that noise has the scale of each column and 0 is its mean. A category is the number of its value: it is never blurred,
only exchanged for that of another row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cotrain.types import Settings

Floats = NDArray[np.float32]


class FeaturePolicy(Settings):
    """How far views of features differ from the row. The strengths of a strong view are drawn up to these."""

    advanced = frozenset({"dropout", "mixing", "noise", "weak_noise"})

    weak_noise: float = Field(0.1, ge=0, description="noise of weak views, in standard deviations of each column")
    noise: float = Field(
        0.5,
        ge=0,
        description="most noise of strong views, in standard deviations of each column",
    )
    dropout: float = Field(
        0.5, ge=0, lt=1, description="largest share of columns that a strong view replaces: by the mean, or a category "
        "by that of another row"
    )  # fmt: skip
    mixing: float = Field(
        0.3,
        ge=0,
        le=0.5,
        description="largest share of another row in a strong view; of categories: how many",
    )


@dataclass(frozen=True)
class FeatureDraw:
    """All random decisions for n views of D columns, C of them with categories; row i describes view i."""

    noise: Floats  # (n, D)
    dropped: NDArray[np.bool_]  # (n, D)
    share: Floats  # (n,) of the partner
    partner: NDArray[np.int64]  # (n,) another row, by its place
    taken: NDArray[np.bool_]  # (n, C) categories that come from the partner
    donors: NDArray[np.int64]  # (n, C) the rows whose categories replace dropped ones


def draw_weak_features(
    policy: FeaturePolicy, n: int, columns: int, categories: int, rng: np.random.Generator
) -> FeatureDraw:
    """A little noise only."""
    noise = rng.standard_normal((n, columns), np.float32)
    noise *= np.float32(policy.weak_noise)
    return FeatureDraw(
        noise=noise,
        dropped=np.zeros((n, 0), np.bool_),
        share=np.zeros(n, np.float32),
        partner=np.zeros(n, np.int64),
        taken=np.zeros((n, categories), np.bool_),
        donors=np.zeros((n, categories), np.int64),
    )


def draw_strong_features(
    policy: FeaturePolicy, n: int, columns: int, categories: int, others: int, rng: np.random.Generator
) -> FeatureDraw:
    """Mixing with one of `others` rows, noise and dropout, each of a strength that every view draws by itself."""
    strengths = rng.random((3, n, 1), np.float32)
    noise = rng.standard_normal((n, columns), np.float32)
    noise *= strengths[0] * np.float32(policy.noise)
    share = strengths[2] * np.float32(policy.mixing)
    return FeatureDraw(
        noise=noise,
        dropped=rng.random((n, columns), np.float32) < strengths[1] * np.float32(policy.dropout),
        share=share[:, 0],
        partner=rng.integers(others, size=n),
        taken=rng.random((n, categories), np.float32) < share,
        donors=rng.integers(others, size=(n, categories)),
    )


def changed(rows: Floats, draw: FeatureDraw, others: Floats, categorical: NDArray[np.int64]) -> Floats:
    """(n, D) views of these rows, row by row; `others` are the rows to mix with, `categorical` the columns of codes."""
    views = rows + draw.noise
    strong = draw.dropped.size > 0
    if strong:
        views += draw.share[:, None] * (others[draw.partner] - rows)
        views[draw.dropped] = 0
    if len(categorical):
        codes = rows[:, categorical]
        if strong:
            codes = np.where(draw.taken, others[draw.partner][:, categorical], codes)
            codes = np.where(draw.dropped[:, categorical], others[draw.donors, categorical], codes)
        views[:, categorical] = codes
    return views
