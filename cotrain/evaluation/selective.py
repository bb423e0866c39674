"""Answering only where the network is sure, and passing the rest on to a person."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotrain.evaluation.calibration import mean_of_ties

TRIED = 10  # thresholds: those that answer a tenth, two tenths, ... of the held-out images
COVERAGES = (0.95, 0.9, 0.8, 0.5)  # that thresholds are shown for
DIGITS = 6  # of a threshold, at most


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


@dataclass(frozen=True)
class Answered:
    """What comes of answering from a probability on."""

    probability: float
    answered: int
    wrong: int  # of those
    share: float  # answered, of all test images
    error: float
    bound: float  # the error is at most this, with 95 % confidence


def answered_from(sureness: NDArray[np.float64], right: NDArray[np.bool_]) -> list[Answered]:
    """From 0 on, and from thresholds that answer about so many as COVERAGES say; `predict` would answer the same."""
    surest = np.sort(sureness)[::-1]
    thresholds = {0.0, *(_short(surest, max(1, round(share * len(right)))) for share in COVERAGES)}
    rows = []
    for threshold in sorted(thresholds):
        kept = sureness >= threshold
        answered, wrong = int(kept.sum()), int((kept & ~right).sum())
        share, error = 100 * answered / len(right), 100 * wrong / answered
        rows.append(Answered(threshold, answered, wrong, share, error, 100 * error_bound(wrong, answered, 0.95)))
    return rows


def _short(surest: NDArray[np.float64], wanted: int) -> float:
    """A threshold that answers so many of them, with as few digits as that takes."""
    needed = int((surest >= surest[wanted - 1]).sum())
    short = 0.0
    for digits in range(1, DIGITS + 1):
        short = float(np.floor(surest[wanted - 1] * 10**digits)) / 10**digits
        if int((surest >= short).sum()) == needed:
            break
    return short
