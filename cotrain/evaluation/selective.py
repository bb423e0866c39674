"""Selective prediction: answer only if the network is confident, and defer the rest to a person."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotrain.evaluation.calibration import mean_of_ties

TRIED = 10  # thresholds: they answer a tenth, two tenths, ... of the held-out images
COVERAGES = (0.95, 0.9, 0.8, 0.5)  # shares of images for which thresholds are reported
DIGITS = 6  # at most, in a reported threshold


@dataclass(frozen=True)
class RiskCoverage:
    """The error among the answered images as the share of answered images grows."""

    coverage: NDArray[np.float64]  # share of answered images
    risk: NDArray[np.float64]  # error among them, 0 to 1

    @property
    def area(self) -> float:
        """AURC: the mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> RiskCoverage:
    """Answer the most confident images first. Ties count as the average over all orders."""
    order = np.argsort(-confidence, kind="stable")
    answered = np.arange(1, len(order) + 1)
    wrong = 1 - mean_of_ties(confidence, right)
    return RiskCoverage(answered / len(order), np.cumsum(wrong[order]) / answered)


@dataclass(frozen=True)
class Threshold:
    """The lowest probability to answer at, and the error bound that this guarantees."""

    probability: float
    answered: int  # of the held-out images
    wrong: int  # of those
    bound: float  # upper bound of the error at the requested confidence level


def threshold_for(
    confidence: NDArray[np.float64], right: NDArray[np.bool_], target: float, level: float = 0.95
) -> Threshold | None:
    """The lowest of ten thresholds at which the error on images like these is at most `target`, at this level.

    Because ten thresholds are tried, each is tested at a higher level (Bonferroni). Returns None if there are too few
    held-out images, or too many mistakes among the confident ones.
    """
    corrected = level_of_each(level)
    for probability in sorted(np.quantile(confidence, 1 - np.arange(1, TRIED + 1) / TRIED, method="lower")):
        kept = confidence >= probability
        answered, wrong = int(kept.sum()), int((kept & ~right).sum())
        bound = error_bound(wrong, answered, corrected)
        if bound <= target:
            return Threshold(float(probability), answered, wrong, bound)
    return None


def level_of_each(level: float) -> float:
    """The confidence level for one of the ten thresholds, so that all of them hold jointly at `level`."""
    return 1 - (1 - level) / TRIED


def images_needed(target: float, level: float = 0.95) -> int:
    """The fewest images, all classified correctly, that guarantee an error of at most `target` (0 to 1)."""
    return math.ceil(math.log(1 - level_of_each(level)) / math.log1p(-target))


def error_bound(wrong: int, answered: int, level: float) -> float:
    """The Clopper-Pearson upper bound of an error rate."""
    from scipy.special import betaincinv  # slow to import

    return 1.0 if wrong == answered else float(betaincinv(wrong + 1, answered - wrong, level))


@dataclass(frozen=True)
class Answered:
    """The outcome of answering only at or above a probability."""

    probability: float
    answered: int
    wrong: int  # of those
    share: float  # answered, percent of all test images
    error: float  # percent
    bound: float  # upper bound of the error, with 95 % confidence


def answered_from(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> list[Answered]:
    """Rows for threshold 0 and for those that reach COVERAGES; `predict --defer-below` answers the same images."""
    descending = np.sort(confidence)[::-1]
    thresholds = {0.0, *(_short(descending, max(1, round(share * len(right)))) for share in COVERAGES)}
    rows = []
    for threshold in sorted(thresholds):
        kept = confidence >= threshold
        answered, wrong = int(kept.sum()), int((kept & ~right).sum())
        share, error = 100 * answered / len(right), 100 * wrong / answered
        rows.append(Answered(threshold, answered, wrong, share, error, 100 * error_bound(wrong, answered, 0.95)))
    return rows


def _short(descending: NDArray[np.float64], wanted: int) -> float:
    """A threshold that answers `wanted` images (and ties), rounded to as few digits as possible."""
    needed = int((descending >= descending[wanted - 1]).sum())
    short = 0.0
    for digits in range(1, DIGITS + 1):
        short = float(np.floor(descending[wanted - 1] * 10**digits)) / 10**digits
        if int((descending >= short).sum()) == needed:
            break
    return short
