"""Risk and coverage by brute force; a promised error that is kept."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import binomtest

from cotrain.evaluation.selective import error_bound, images_needed, level_of_each, risk_coverage, threshold_for


def test_risk_and_coverage_are_counted() -> None:
    rng = np.random.default_rng(0)
    confidence, right = rng.random(50), rng.random(50) < 0.7
    curve = risk_coverage(confidence, right)
    for answered in range(1, 51):
        surest = sorted(range(50), key=lambda image: -confidence[image])[:answered]
        assert curve.coverage[answered - 1] == pytest.approx(answered / 50)
        assert curve.risk[answered - 1] == pytest.approx(np.mean([not right[image] for image in surest]))
    assert curve.area == pytest.approx(curve.risk.mean())


def test_ties_are_the_mean_over_all_their_orders() -> None:
    confidence = np.array([0.9, 0.9, 0.9, 0.7, 0.5, 0.5, 0.5])
    right = np.array([True, False, True, False, True, False, False])
    wrong = [
        [*~right[list(first)], not right[3], *~right[list(last)]]
        for first in permutations(range(3))
        for last in permutations(range(4, 7))
    ]
    by_order = np.cumsum(wrong, axis=1) / np.arange(1, 8)
    curve = risk_coverage(confidence, right)
    assert curve.risk == pytest.approx(by_order.mean(axis=0))
    assert curve.area == pytest.approx(by_order.mean())


def test_the_order_of_rows_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    confidence, right = rng.choice([0.5, 0.6, 0.9, 1.0], 60), rng.random(60) < 0.7
    curve = risk_coverage(confidence, right)
    for _ in range(20):
        order = rng.permutation(60)
        assert np.array_equal(risk_coverage(confidence[order], right[order]).risk, curve.risk)


def test_a_confidence_that_is_always_the_same_has_the_error_at_every_coverage() -> None:
    right = np.arange(40) >= 7
    assert risk_coverage(np.full(40, 0.8), right).risk == pytest.approx(np.full(40, 7 / 40))
    assert risk_coverage(np.full(40, 0.8), right).area == pytest.approx(7 / 40)


def test_confidence_that_knows_its_mistakes_has_the_smaller_area() -> None:
    right = np.arange(100) >= 20
    knowing, ignorant = (risk_coverage(order / 100, right).area for order in (np.arange(100.0), np.arange(100.0)[::-1]))
    assert knowing < 0.05 < 0.3 < ignorant
    assert risk_coverage(np.ones(10), np.zeros(10, bool)).area == 1


def test_the_bound_is_clopper_and_pearsons() -> None:
    for wrong, answered in ((0, 30), (3, 100), (99, 100)):
        exact = binomtest(wrong, answered, alternative="less").proportion_ci(0.95, method="exact").high
        assert error_bound(wrong, answered, 0.95) == pytest.approx(exact)
    assert error_bound(5, 5, 0.95) == 1


def test_the_promised_error_is_kept_as_often_as_promised() -> None:
    """Many times over, with an error just above the target whatever the confidence: any threshold breaks the promise.

    Each of the ten that are tried is a chance to be taken in: with 95 % for each, one in seven runs or so would be.
    """
    rng = np.random.default_rng(1)
    target, times = 0.1, 500
    broken = 0
    for _ in range(times):
        confidence, right = rng.random(1000), rng.random(1000) >= 1.001 * target
        found = threshold_for(confidence, right, target)
        broken += found is not None
        assert found is None or found.bound <= target
    assert 0 < broken <= 0.05 * times


def test_a_promise_that_can_be_kept_is_given() -> None:
    """Images whose error falls with confidence: the chosen threshold is not far from the lowest that would do."""
    rng = np.random.default_rng(1)
    chosen = []
    for _ in range(50):
        confidence = rng.random(2000)
        found = threshold_for(confidence, rng.random(2000) < 0.6 + 0.4 * confidence, target=0.1)
        assert found is not None
        chosen.append(found.probability)
    assert min(chosen) > 0.5 and np.median(chosen) < 0.75  # the mean error above 0.5 is 0.1


def test_too_few_images_promise_nothing() -> None:
    assert threshold_for(np.linspace(0.5, 1, 20), np.ones(20, bool), target=0.01) is None
    assert threshold_for(np.linspace(0.5, 1, 2000), np.ones(2000, bool), target=0.01).answered == 2000
    assert threshold_for(np.ones(100), np.zeros(100, bool), target=0.5) is None


@pytest.mark.parametrize("target", [0.001, 0.01, 0.05, 0.5])
def test_as_many_images_as_are_needed_are_enough_and_one_fewer_is_not(target: float) -> None:
    needed = images_needed(target)
    assert error_bound(0, needed, level_of_each(0.95)) <= target < error_bound(0, needed - 1, level_of_each(0.95))
    for images, found in ((needed, True), (needed - 1, False)):
        promised = threshold_for(np.full(images, 0.9), np.ones(images, bool), target)
        assert (promised is not None) == found
