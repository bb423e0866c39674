"""Did the unlabelled images help? Two runs on the same test images, and a word for the difference."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cotrain.ops import ensemble_probabilities
from cotrain.runs.scores import Outputs
from cotrain.types import UserError

RESAMPLES = 10_000
UNCLEAR = "no clear difference"
CHANCE = 0.05  # of "helped" or "hurt" where there is no difference; the most there may be


@dataclass(frozen=True)
class Verdict:
    """Errors in percent, and ours minus the labelled-only one with its 95 % interval."""

    labelled_only: float
    error: float
    difference: float
    low: float
    high: float
    word: str  # helped, no clear difference, or hurt

    @property
    def few(self) -> bool:
        """The interval is clear of zero, but too few images differ for a sign test to agree."""
        return self.word == UNCLEAR and self.low * self.high > 0


def verdict(ours: Outputs, theirs: Outputs, rule: str) -> Verdict:
    """A paired bootstrap over the test images: which of them are drawn is the same for both.

    Of few images that only one of both gets wrong its interval is too narrow, so a sign test must agree with it.
    """
    if not np.array_equal(ours.rows, theirs.rows) or not torch.equal(ours.labels, theirs.labels):
        raise UserError("the two runs were tested on different images, so their errors cannot be paired")
    from scipy.stats import binomtest  # slow to import

    wrong, wrong_alone = is_wrong(ours, rule), is_wrong(theirs, rule)
    lost, gained = int((wrong & ~wrong_alone).sum()), int((~wrong & wrong_alone).sum())
    low, high = paired_interval(lost, gained, len(wrong))
    word = UNCLEAR
    if lost + gained and binomtest(lost, lost + gained).pvalue < CHANCE:
        word = "helped" if high < 0 else "hurt" if low > 0 else word
    return Verdict(
        labelled_only=100 * float(wrong_alone.mean()),
        error=100 * float(wrong.mean()),
        difference=100 * (lost - gained) / len(wrong),
        low=low,
        high=high,
        word=word,
    )


def is_wrong(outputs: Outputs, rule: str) -> NDArray[np.bool_]:
    return (ensemble_probabilities(outputs.logits, rule).argmax(dim=-1) != outputs.labels).numpy()


def paired_interval(lost: int, gained: int, images: int) -> tuple[float, float]:
    """95 % of the differences, in percent, that images drawn anew from these would have.

    An image counts 1, -1 or 0, so that drawing with replacement is drawing three counts.
    """
    shares = np.array([lost, gained, images - lost - gained]) / images
    drawn = np.random.default_rng(0).multinomial(images, shares, RESAMPLES)
    low, high = np.quantile(100 * (drawn[:, 0] - drawn[:, 1]) / images, [0.025, 0.975])
    return float(low), float(high)
