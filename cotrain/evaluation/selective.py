"""Answering only where the network is sure, and passing the rest on to a person."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotrain.evaluation.calibration import mean_of_ties

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
    """The surest images first. Ties are as if in all orders at once: what is wrong of them is spread evenly."""
    order = np.argsort(-confidence, kind="stable")
    answered = np.arange(1, len(order) + 1)
    wrong = 1 - mean_of_ties(confidence, right)
    return RiskCoverage(answered / len(order), np.cumsum(wrong[order]) / answered)


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
    """The lowest of ten thresholds with which the error on images like these is at most `target`, with this confidence.

    As ten are tried, each must hold with more than that (Bonferroni). None holds where there are too few held-out
    images, or too many mistakes among the sure ones.
    """
    of_each = level_of_each(level)
    for probability in sorted(np.quantile(confidence, 1 - np.arange(1, TRIED + 1) / TRIED, method="lower")):
        kept = confidence >= probability
        answered, wrong = int(kept.sum()), int((kept & ~right).sum())
        bound = error_bound(wrong, answered, of_each)
        if bound <= target:
            return Threshold(float(probability), answered, wrong, bound)
    return None


def level_of_each(level: float) -> float:
    """The confidence that one of the tried thresholds needs, for all of them together to have this one."""
    return 1 - (1 - level) / TRIED


def images_needed(target: float, level: float = 0.95) -> int:
    """The fewest images that promise an error of at most `target`, between 0 and 1, if none of them is wrong."""
    return math.ceil(math.log(1 - level_of_each(level)) / math.log1p(-target))


def error_bound(wrong: int, answered: int, level: float) -> float:
    """Clopper and Pearson's upper bound of an error."""
    from scipy.stats import beta  # slow to import

    return 1.0 if wrong == answered else float(beta.ppf(level, wrong + 1, answered - wrong))
