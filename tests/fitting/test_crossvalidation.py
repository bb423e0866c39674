"""Cross-validation over the labelled images: who sees which label, and what the numbers mean."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from cotrain.data import Split
from cotrain.fitting.crossvalidation import OURS, estimate, folds_of, paired_rates, summary
from cotrain.fitting.summary import better_model


def a_split(labelled: int, images: int = 60) -> Split:
    return Split(
        name="toy",
        source=None,
        fingerprint="",
        labelled=tuple(range(labelled)),
        unlabelled=tuple(range(images)),
        valid=(),
        test=(),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=6, max_size=40), st.integers(2, 5), st.integers(1, 3))
def test_every_label_is_held_out_once_per_repeat_and_never_seen_then(
    classes: list[int], folds: int, repeats: int
) -> None:
    split, labels = a_split(len(classes)), torch.tensor(classes + [-1] * (60 - len(classes)))
    found = folds_of(split, labels, folds, repeats, seed=0)
    counts = np.bincount(classes, minlength=5)
    expected = [row for row, label in enumerate(classes) if counts[label] > 1]
    for repeat in range(repeats):
        held = [row for fold in found if fold.repeat == repeat for row in fold.held.tolist()]
        assert sorted(held) == expected
    for fold in found:
        assert not set(fold.held.tolist()) & set(fold.split.labelled)
        assert set(fold.held.tolist()) | set(fold.split.labelled) == set(split.labelled)
        assert fold.split.unlabelled == split.unlabelled, "a held-out image stays among the unlabelled ones"
        assert set(np.asarray(classes)[list(fold.split.labelled)]) == set(classes), "every class keeps a label"


def test_repeats_divide_differently_and_the_seed_decides() -> None:
    labels = torch.arange(60) % 4
    first, second = folds_of(a_split(24), labels, 3, 2, seed=0)[:3], folds_of(a_split(24), labels, 3, 2, seed=0)[3:]
    assert [fold.held.tolist() for fold in first] != [fold.held.tolist() for fold in second]
    again = folds_of(a_split(24), labels, 3, 2, seed=0)
    assert [fold.held.tolist() for fold in again[:3]] == [fold.held.tolist() for fold in first]
    other = folds_of(a_split(24), labels, 3, 2, seed=1)
    assert [fold.held.tolist() for fold in other[:3]] != [fold.held.tolist() for fold in first]


def test_the_interval_counts_images_not_repeats() -> None:
    rates = np.array([1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    one = estimate(rates)
    assert one.error == pytest.approx(15.0)
    wilson = [binomtest(wrong, 10).proportion_ci(0.95, method="wilson") for wrong in (1, 2)]
    assert one.low == pytest.approx(100 * wilson[0].low)
    assert one.high == pytest.approx(100 * wilson[1].high)


def test_a_clear_difference_needs_many_images() -> None:
    worse, better = np.array([1.0] * 20 + [0.0] * 20), np.zeros(40)
    low, high, clear = paired_rates(worse, better)
    assert clear
    assert 0 < low < 50 < high
    assert not paired_rates(np.array([1.0] * 3 + [0.0] * 37), better)[2], "three images are chance"
    assert not paired_rates(better, better)[2]


def test_the_better_model_is_used() -> None:
    wrong = {OURS: {row: [row < 20] for row in range(40)}, "labelled_only": {row: [row < 18] for row in range(40)}}
    wrong["logistic_regression"] = {row: [row < 4] for row in range(40)}
    found = summary(wrong, repeats=1, folds=4)
    assert found.against is not None and found.against.baseline == "logistic_regression"
    assert found.against.difference == pytest.approx(40.0)
    assert found.against.word == "hurt"
    assert better_model(found) == "logistic_regression"
    wrong["logistic_regression"] = wrong["labelled_only"]
    assert better_model(summary(wrong, repeats=1, folds=4)) == "method", "no clear difference"
    assert better_model(None) == "method"


def test_the_interval_covers_the_true_error() -> None:
    """Nearest class means on overlapping clouds, 40 labels: the true error of the model that has all labels."""
    covered, trials, classes, features = 0, 60, 4, 8
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        centres = 1.2 * rng.standard_normal((classes, features))
        labels = torch.arange(1040) % classes
        points = centres[labels.numpy()] + rng.standard_normal((1040, features))

        def error(train: np.ndarray, rows: np.ndarray, points: np.ndarray = points) -> np.ndarray:
            means = np.stack([points[train[train % classes == each]].mean(axis=0) for each in range(classes)])
            nearest = ((points[rows][:, None] - means) ** 2).sum(axis=-1).argmin(axis=1)
            return nearest != rows % classes

        split, wrong = a_split(40, images=1040), {row: [] for row in range(40)}
        for fold in folds_of(split, labels, folds=4, repeats=2, seed=seed):
            for row, mistaken in zip(fold.held, error(np.array(fold.split.labelled), fold.held), strict=True):
                wrong[int(row)].append(bool(mistaken))
        found = estimate(np.array([np.mean(each) for each in wrong.values()]))
        true = 100 * error(np.arange(40), np.arange(40, 1040)).mean()
        covered += found.low <= true <= found.high
    assert covered >= 0.9 * trials, f"a 95 % interval covered {covered} of {trials} true errors"
