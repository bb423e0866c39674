"""Very wide samples: sparse ones are reduced before training, and for others the expected time is said."""

from typing import Any

from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

from cotrain.config import Config
from cotrain.sklearn.comparison import FOLDS

WIDE = 4_096  # columns
REDUCED = 50  # dimensions
SECONDS = 3e-5  # for each step and column, on two cores
LONG = 60  # seconds


def reduction_of(values: Any, seed: int) -> Pipeline | None:
    """Latent semantic analysis, fitted to a wide sparse matrix such as TF-IDF; None for all others.

    Time and memory of training grow with the columns, and most columns of such a matrix are rare words.
    """
    if not sparse.issparse(values) or values.shape[1] <= WIDE:
        return None
    dimensions = min(REDUCED, values.shape[0])
    return make_pipeline(TruncatedSVD(dimensions, random_state=seed), Normalizer()).fit(values)


def expected_seconds(columns: int, config: Config, *, compare: bool) -> float:
    return SECONDS * columns * config.optim.steps * (1 + FOLDS if compare else 1)


def long_wait(columns: int, config: Config, *, compare: bool) -> str | None:
    """A warning before a training that takes minutes because of its columns."""
    seconds = expected_seconds(columns, config, compare=compare)
    if columns <= WIDE or seconds < LONG:
        return None
    return (
        f"X has {columns:,} columns, and training on them takes about {seconds / 60:,.0f} minutes; a reduction such as "
        f"make_pipeline(PCA({REDUCED}), CoTrainingClassifier()) takes seconds"
    )
