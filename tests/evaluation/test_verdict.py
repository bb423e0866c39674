"""Did the unlabelled images help? Against a bootstrap that draws images one by one."""

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest

from cotrain import UserError
from cotrain.evaluation.outputs import error_interval
from cotrain.evaluation.verdict import sign_test, verdict
from cotrain.runs.result import Verdict
from cotrain.runs.scores import Outputs


def outputs(right: np.ndarray, *, rows: np.ndarray | None = None) -> Outputs:
    """One head that is right where it is said to be; every label is class 0."""
    said = torch.from_numpy(np.where(right, 0, 1))
    logits = 5.0 * torch.nn.functional.one_hot(said, 2)[None]
    return Outputs(logits, torch.zeros(len(right), dtype=torch.long), np.arange(len(right)) if rows is None else rows)


def of(ours: np.ndarray, theirs: np.ndarray) -> Verdict:
    return verdict(outputs(ours), outputs(theirs), "probabilities")


@pytest.mark.parametrize(("good", "poor"), [(0.9, 0.7), (0.8, 0.82), (0.5, 0.9)])
def test_the_interval_is_that_of_drawing_images_with_replacement(good: float, poor: float) -> None:
    rng = np.random.default_rng(3)
    ours, theirs = rng.random(200) < good, rng.random(200) < poor
    found = of(ours, theirs)
    drawn = rng.integers(0, 200, (20_000, 200))
    differences = 100 * (theirs[drawn].mean(axis=1) - ours[drawn].mean(axis=1))
    assert [found.low, found.high] == pytest.approx(np.quantile(differences, [0.025, 0.975]), abs=0.51)  # one image
    assert found.difference == pytest.approx(found.error - found.labelled_only)
    assert found.error == pytest.approx(100 * (~ours).mean())
    assert found.labelled_only == pytest.approx(100 * (~theirs).mean())
    assert found.low < found.difference < found.high


def test_the_pairs_matter() -> None:
    """The same two errors are further apart, statistically, if the same images are wrong."""
    theirs = np.arange(100) >= 30
    nested, crossed = np.arange(100) >= 20, np.arange(100) < 80
    assert of(nested, theirs).difference == of(crossed, theirs).difference == -10
    assert of(nested, theirs).high - of(nested, theirs).low < of(crossed, theirs).high - of(crossed, theirs).low
    assert of(nested, theirs).word == "helped"
    assert of(crossed, theirs).word == "no clear difference"


def test_words() -> None:
    all_right, half = np.ones(100, bool), np.arange(100) < 50
    assert of(all_right, half).word == "helped"
    assert of(half, all_right).word == "hurt"
    assert not of(half, half).few
    same = {"labelled_only": 50.0, "error": 50.0, "difference": 0.0, "low": 0.0, "high": 0.0}
    assert of(half, half) == Verdict(**same, word="no clear difference")


@pytest.mark.parametrize(("differing", "word"), [(5, "no clear difference"), (6, "helped")])
def test_a_handful_of_images_is_no_evidence(differing: int, word: str) -> None:
    found = of(np.ones(300, bool), np.arange(300) >= differing)
    assert (found.word, found.few) == (word, word != "helped")  # the interval alone would say so
    assert of(np.array([True]), np.array([False])).word == "no clear difference"


@pytest.mark.system
@pytest.mark.parametrize("images", [60, 1000])
def test_where_there_is_no_difference_it_is_seldom_said_that_there_is_one(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly: every number of images that only one of both gets wrong, and every way to divide it."""
    monkeypatch.setattr("cotrain.evaluation.verdict.RESAMPLES", 500)
    for differing in range(1, 61):
        chance = 0.0
        for lost in range(differing + 1):
            number = np.arange(images)
            word = of(number >= lost, (number < lost) | (number >= differing)).word
            chance += binom.pmf(lost, differing, 0.5) * (word != "no clear difference")
        assert chance <= 0.05, differing


@pytest.mark.parametrize(("wrong", "images"), [(0, 1), (1, 1), (0, 40), (13, 40), (20, 40), (40, 40), (123, 10_000)])
def test_wilsons_interval_and_the_sign_test_are_those_of_scipy(wrong: int, images: int) -> None:
    reference = binomtest(wrong, images)
    interval = reference.proportion_ci(0.95, method="wilson")
    assert error_interval(wrong, images) == pytest.approx((100 * interval.low, 100 * interval.high))
    assert sign_test(wrong, images - wrong) == pytest.approx(reference.pvalue)


def test_other_images_are_refused() -> None:
    right = np.ones(4, bool)
    with pytest.raises(UserError, match="cannot be paired"):
        verdict(outputs(right), outputs(right, rows=np.arange(1, 5)), "probabilities")
