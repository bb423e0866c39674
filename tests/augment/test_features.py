"""Views of features: what they may change, how far, and that (seed, step) decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.augment.feature_views import FeaturePolicy, changed, draw_strong_features, draw_weak_features

ROWS = 400
NO_CODES = np.zeros(0, np.int64)
QUIET = {"noise": 0.0, "dropout": 0.0, "mixing": 0.0}


def rng() -> np.random.Generator:
    return np.random.default_rng((3, 5))


def strong(policy: FeaturePolicy, rows: np.ndarray, others: np.ndarray, codes: np.ndarray = NO_CODES) -> np.ndarray:
    draw = draw_strong_features(policy, *rows.shape, len(codes), len(others), rng())
    return changed(rows, draw, others, codes)


def test_a_weak_view_adds_a_little_noise_of_the_same_scale_to_every_column() -> None:
    rows = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
    draw = draw_weak_features(FeaturePolicy(weak_noise=0.1), ROWS, 6, 0, rng())
    noise = changed(rows, draw, rows, NO_CODES) - rows
    assert np.allclose(noise.std(axis=0), 0.1, atol=0.015)
    assert np.allclose(noise.mean(axis=0), 0, atol=0.02)


def test_strengths_are_drawn_for_each_view() -> None:
    rows = np.zeros((ROWS, 200), np.float32)
    spreads = strong(FeaturePolicy(noise=1.0, dropout=0.0, mixing=0.0), rows, rows).std(axis=1)
    assert spreads.min() < 0.05
    assert 0.9 < spreads.max() < 1.2
    assert abs(spreads.mean() - 0.5) < 0.05


def test_dropped_columns_are_at_their_mean() -> None:
    rows = np.ones((ROWS, 200), np.float32)
    views = strong(FeaturePolicy(**QUIET | {"dropout": 0.6}), rows, rows)
    assert set(np.unique(views)) == {0, 1}
    shares = (views == 0).mean(axis=1)
    assert shares.min() < 0.05
    assert 0.5 < shares.max() < 0.7


def test_mixing_goes_towards_another_row_and_never_past_the_middle() -> None:
    rows, others = np.zeros((ROWS, 5), np.float32), np.ones((7, 5), np.float32) * np.arange(1, 8)[:, None]
    views = strong(FeaturePolicy(**QUIET | {"mixing": 0.5}), rows, others)
    assert (views == views[:, :1]).all()
    assert views.max() <= 3.5
    assert len(np.unique(views[:, 0])) == ROWS


def test_without_any_strength_a_view_is_the_row() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    assert np.array_equal(strong(FeaturePolicy(**QUIET), rows, rows[::-1]), rows)


@given(st.floats(0, 2), st.floats(0, 0.9), st.floats(0, 0.5))
def test_categories_are_exchanged_for_those_of_other_rows_and_never_blurred(
    noise: float, dropout: float, mixing: float
) -> None:
    rows = np.tile(np.array([5.0, 1.0, 0.25, 2.0], np.float32), (50, 1))
    others = np.array([[0, 3, 0, 8], [0, 4, 0, 9]], np.float32)
    policy = FeaturePolicy(noise=noise, dropout=dropout, mixing=mixing)
    views = strong(policy, rows, others, np.array([1, 3]))
    assert set(np.unique(views[:, 1])) <= {1, 3, 4}
    assert set(np.unique(views[:, 3])) <= {2, 8, 9}


def test_dropped_categories_follow_their_own_distribution() -> None:
    others = np.repeat([0.0, 1.0], [30, 10]).astype(np.float32)[:, None]
    views = strong(
        FeaturePolicy(**QUIET | {"dropout": 0.99}), np.full((4000, 1), 2.0, np.float32), others, np.array([0])
    )
    exchanged = views[views != 2]
    assert len(exchanged) > 1500
    assert abs((exchanged == 0).mean() - 0.75) < 0.03


@pytest.mark.parametrize("key", ["weak_noise", "noise", "dropout", "mixing"])
def test_no_strength_is_negative(key: str) -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        FeaturePolicy(**{key: -0.1})
