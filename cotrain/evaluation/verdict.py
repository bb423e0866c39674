"""Did the unlabelled images help? Compares a run with its baseline on the same test images."""

import numpy as np
import torch
from numpy.typing import NDArray

from cotrain.ops import ensemble_probabilities
from cotrain.runs.result import BaselineName, Result, Verdict, Word
from cotrain.runs.scores import Outputs
from cotrain.types import Unit, UserError

RESAMPLES = 10_000
CHANCE = 0.05  # the highest allowed probability of "helped" or "hurt" if there is no difference


def how_better(result: Result, unit: Unit) -> str:
    """How the baseline that a run uses instead of its method turned out to be better, in words."""
    if result.cross_validation:
        return "clearly better in cross-validation"
    compared = result.validation  # older versions did not keep it, and used only what was clearly better
    clearly = "clearly " if compared is None or compared.word == "hurt" else ""
    return f"{clearly}better on the validation {unit.many}"


def sign_test(worse: int, better: int) -> float:
    """The two-sided p-value of as many images that got worse and better, if either is as likely."""
    from scipy.special import bdtr  # slow to import

    return min(1.0, 2 * float(bdtr(min(worse, better), worse + better, 0.5)))


def verdict(ours: Outputs, baseline: Outputs, rule: str, against: BaselineName = "labelled_only") -> Verdict:
    """A paired bootstrap over the test images: both runs are scored on the same resampled images.

    If only a few images separate the two runs, the bootstrap interval is too narrow, so a sign test must agree.
    """
    if not np.array_equal(ours.rows, baseline.rows) or not torch.equal(ours.labels, baseline.labels):
        raise UserError("the two runs were tested on different data, so their errors cannot be paired")
    wrong, baseline_wrong = is_wrong(ours, rule), is_wrong(baseline, rule)
    lost, gained = int((wrong & ~baseline_wrong).sum()), int((~wrong & baseline_wrong).sum())
    low, high = paired_interval(lost, gained, len(wrong))
    word: Word = "no clear difference"
    if lost + gained and sign_test(lost, gained) < CHANCE:
        word = "helped" if high < 0 else "hurt" if low > 0 else word
    return Verdict(
        labelled_only=100 * float(baseline_wrong.mean()),
        error=100 * float(wrong.mean()),
        difference=100 * (lost - gained) / len(wrong),
        low=low,
        high=high,
        word=word,
        against=against,
    )


def is_wrong(outputs: Outputs, rule: str) -> NDArray[np.bool_]:
    return (ensemble_probabilities(outputs.logits, rule).argmax(dim=-1) != outputs.labels).numpy()


def paired_interval(lost: int, gained: int, images: int) -> tuple[float, float]:
    """The 95 % bootstrap interval of the difference, in percentage points.

    Each image counts 1, -1 or 0, so resampling with replacement is a multinomial draw of three counts.
    """
    shares = np.array([lost, gained, images - lost - gained]) / images
    drawn = np.random.default_rng(0).multinomial(images, shares, RESAMPLES)
    low, high = np.quantile(100 * (drawn[:, 0] - drawn[:, 1]) / images, [0.025, 0.975])
    return float(low), float(high)
