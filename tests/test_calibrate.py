"""Calibration against sums written out."""

import numpy as np
import pytest
import torch

from cotrain.calibrate import expected_calibration_error


def by_hand(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    total = 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return 100 * total


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("classes", [2, 7])
def test_the_error_is_the_weighted_gap_of_the_bins(bins: int, classes: int) -> None:
    rng = np.random.default_rng(classes)
    probabilities = rng.dirichlet(np.full(classes, 0.3), 400)
    labels = rng.integers(classes, size=400)
    ours = expected_calibration_error(torch.from_numpy(probabilities), torch.from_numpy(labels), bins)
    assert ours == pytest.approx(by_hand(probabilities, labels, bins), abs=1e-9)


def test_certainty_that_is_right_has_no_error_and_one_that_is_wrong_has_all() -> None:
    certain = torch.eye(3)
    assert expected_calibration_error(certain, torch.tensor([0, 1, 2])) == 0
    assert expected_calibration_error(certain, torch.tensor([1, 2, 0])) == 100
