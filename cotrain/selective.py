"""Answering only where the network is sure, and passing the rest on to a person."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

TRIED = 10  # thresholds: those that answer a tenth, two tenths, ... of the held-out images


@dataclass(frozen=True)
class RiskCoverage:
    """The error among the images that are answered, as fewer and fewer are passed on."""

    coverage: NDArray[np.float64]  # share of images that are answered
    risk: NDArray[np.float64]  # their error

    @property
    def area(self) -> float:
        """AURC: the mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> RiskCoverage:
    """The surest images first; ties in the order they come in."""
    order = np.argsort(-confidence, kind="stable")
    answered = np.arange(1, len(order) + 1)
    return RiskCoverage(answered / len(order), np.cumsum(~right[order]) / answered)


@dataclass(frozen=True)
class Threshold:
    """From which probability on to answer, and what that promises."""

    probability: float
    answered: int  # of the held-out images
    wrong: int  # of those
    bound: float  # the error is at most this, with the stated confidence


def threshold_for(
    confidence: NDArray[np.float64], right: NDArray[np.bool_], target: float, level: float = 0.95
) -> Threshold | None:
    """The lowest threshold with which the error on images like these is at most `target`, with this confidence.

    Several are tried, so each must hold with more than that (Bonferroni). None holds where there are too few held-out
    images, or too many mistakes among the sure ones.
    """
    of_each = 1 - (1 - level) / TRIED
    for probability in sorted(np.quantile(confidence, 1 - np.arange(1, TRIED + 1) / TRIED, method="lower")):
        kept = confidence >= probability
        answered, wrong = int(kept.sum()), int((kept & ~right).sum())
        bound = error_bound(wrong, answered, of_each)
        if bound <= target:
            return Threshold(float(probability), answered, wrong, bound)
    return None


def error_bound(wrong: int, answered: int, level: float) -> float:
    """Clopper and Pearson's upper bound of an error."""
    return 1.0 if wrong == answered else float(beta.ppf(level, wrong + 1, answered - wrong))
