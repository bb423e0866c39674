"""Calibration against sums written out, torchmetrics and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss
from torch import Tensor

from cotrain.evaluation.calibration import (
    ENOUGH_WRONG,
    adaptive_calibration_error,
    brier_score,
    calibration,
    confidence_and_right,
    expected_calibration_error,
    fit_temperature,
    mean_of_ties,
    negative_log_likelihood,
    reliability,
    with_temperature,
)


def made_up(classes: int, images: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Overconfident at some confidences and underconfident at others, so that gaps would cancel in wrong bins."""
    rng = np.random.default_rng((classes, seed))
    probabilities = rng.dirichlet(np.full(classes, 1 / classes), images)
    confidence, said = probabilities.max(axis=1), probabilities.argmax(axis=1)
    right = rng.random(images) < confidence + 0.3 * np.sin(20 * confidence)
    other = (said + rng.integers(1, classes, images)) % classes
    return torch.from_numpy(probabilities), torch.from_numpy(np.where(right, said, other))


def by_hand(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    total = 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return 100 * total


@pytest.mark.parametrize("classes", [2, 5, 7, 100])
def test_made_up_images_tell_bins_apart(classes: int) -> None:
    """Or the tests below would see nothing of them."""
    for images in (400, 3000):
        probabilities, labels = made_up(classes, images)
        one, ten, fifteen = (expected_calibration_error(probabilities, labels, bins) for bins in (1, 10, 15))
        adaptive = adaptive_calibration_error(*confidence_and_right(probabilities, labels))
        assert ten - one > 1 and abs(fifteen - ten) > 0.1 and abs(adaptive - ten) > 1e-3
        found = reliability(*confidence_and_right(probabilities, labels))
        gaps = (found.accuracy - found.confidence)[found.images > images / 50]
        assert gaps.min() < -0.05 and gaps.max() > 0.05


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("classes", [2, 7])
def test_the_error_is_the_weighted_gap_of_the_bins(bins: int, classes: int) -> None:
    probabilities, labels = made_up(classes)
    ours = expected_calibration_error(probabilities, labels, bins)
    assert ours == pytest.approx(by_hand(probabilities.numpy(), labels.numpy(), bins), abs=1e-9)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("classes", [2, 7, 100])
def test_the_error_is_torchmetrics(bins: int, classes: int) -> None:
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    """Theirs is a share, in float32. No confidence is on an edge here: they count it to the bin above, we below."""
    probabilities, labels = made_up(classes, images=3000)
    theirs = multiclass_calibration_error(probabilities, labels, num_classes=classes, n_bins=bins, norm="l1")
    assert expected_calibration_error(probabilities, labels, bins) / 100 == pytest.approx(theirs.item(), abs=1e-6)
    confidence, right = confidence_and_right(probabilities, labels)
    binary = binary_calibration_error(torch.from_numpy(confidence), torch.from_numpy(right).long(), bins, "l1")
    assert reliability(confidence, right, bins).gap / 100 == pytest.approx(binary.item(), abs=1e-6)


def test_an_edge_belongs_to_the_bin_below_it() -> None:
    found = reliability(np.array([0.5, 0.5, 0.75, 1.0]), np.array([True, False, True, True]), 4)
    assert found.images.tolist() == [0, 2, 1, 1]


def test_the_diagram_is_scikit_learns() -> None:
    confidence, right = confidence_and_right(*made_up(5))
    accuracy, mean = calibration_curve(right, confidence, n_bins=10, strategy="uniform")
    ours = reliability(confidence, right)
    assert ours.accuracy[ours.images > 0] == pytest.approx(accuracy, abs=1e-12)
    assert ours.confidence[ours.images > 0] == pytest.approx(mean, abs=1e-12)
    assert np.isnan(ours.accuracy[ours.images == 0]).all()
    assert ours.images.sum() == 400


@pytest.mark.parametrize("bins", [1, 10, 100])
def test_the_diagram_knows_the_means_of_all_images(bins: int) -> None:
    confidence, right = confidence_and_right(*made_up(5))
    found = reliability(confidence, right, bins)
    assert found.mean_accuracy == pytest.approx(100 * right.mean(), abs=1e-9)
    assert found.mean_confidence == pytest.approx(100 * confidence.mean(), abs=1e-9)


def test_bins_of_equally_many_images_are_scikit_learns() -> None:
    confidence, right = confidence_and_right(*made_up(5))
    for bins in (1, 10, 16):  # 400 images can be shared out among so many
        accuracy, mean = calibration_curve(right, confidence, n_bins=bins, strategy="quantile")
        ours = adaptive_calibration_error(confidence, right, bins)
        assert ours == pytest.approx(100 * abs(accuracy - mean).mean(), abs=1e-9)
    three = np.array([0.9, 0.5, 0.7])
    assert adaptive_calibration_error(three, np.array([True, False, False]), 10) == pytest.approx(
        100 * (0.1 + 0.5 + 0.7) / 3
    )


def test_the_order_of_images_of_the_same_confidence_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    confidence, right = rng.choice([0.5, 0.6, 0.9, 0.9, 1.0], 97), rng.random(97) < 0.7
    found = adaptive_calibration_error(confidence, right)
    for _ in range(20):
        order = rng.permutation(97)
        assert adaptive_calibration_error(confidence[order], right[order]) == found
    same = np.full(97, 0.8)
    assert adaptive_calibration_error(same, right) == pytest.approx(100 * abs(right.mean() - 0.8))


def test_images_of_the_same_confidence_share_what_is_right() -> None:
    share = mean_of_ties(np.array([0.9, 0.5, 0.9, 0.7, 0.9]), np.array([True, False, False, True, True]))
    assert share == pytest.approx([2 / 3, 0, 2 / 3, 1, 2 / 3])


def test_certainty_that_is_right_has_no_error_and_one_that_is_wrong_has_all() -> None:
    certain = torch.eye(3)
    assert expected_calibration_error(certain, torch.tensor([0, 1, 2])) == 0
    assert expected_calibration_error(certain, torch.tensor([1, 2, 0])) == 100
    assert brier_score(certain, torch.tensor([1, 2, 0])) == 2
    assert np.isfinite(negative_log_likelihood(certain, torch.tensor([1, 2, 0])))


def test_likelihood_is_scikit_learns_and_brier_is_the_sum_of_squares() -> None:
    probabilities, labels = made_up(4)
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(
        log_loss(labels, probabilities, labels=range(4)), rel=1e-9
    )
    target = np.eye(4)[labels]
    assert brier_score(probabilities, labels) == pytest.approx(
        ((probabilities.numpy() - target) ** 2).sum(1).mean(), rel=1e-12
    )
    whole = calibration(probabilities, labels)
    assert whole.ece == expected_calibration_error(probabilities, labels)
    assert whole.accuracy == pytest.approx(100 * (probabilities.argmax(1) == labels).double().mean().item())


@pytest.mark.parametrize("rule", ["probabilities", "logits"])
def test_the_fitted_temperature_is_the_best_of_a_fine_grid(rule: str) -> None:
    logits = 6 * torch.randn(3, 500, 4, generator=torch.Generator().manual_seed(0))
    labels = (logits.mean(0) / 3 + torch.randn(500, 4, generator=torch.Generator().manual_seed(1))).argmax(-1)
    fitted = fit_temperature(logits, labels, rule)
    grid = np.geomspace(0.06, 19, 400)
    costs = [negative_log_likelihood(with_temperature(logits, t, rule), labels) for t in grid]
    assert fitted == pytest.approx(grid[np.argmin(costs)], rel=0.03)
    assert fitted > 1.5, "logits this large are overconfident"


def with_mistakes(wrong: int, sure: float, images: int = 200) -> tuple[Tensor, Tensor]:
    """Two heads that say class 0 of everything, this sure of it; so many labels are another."""
    logits = torch.zeros(2, images, 3)
    logits[..., 0] = sure
    return logits, (torch.arange(images) < wrong).long()


@pytest.mark.parametrize("rule", ["probabilities", "logits"])
def test_few_mistakes_never_make_the_network_surer(rule: str) -> None:
    for wrong in range(ENOUGH_WRONG):
        assert fit_temperature(*with_mistakes(wrong, sure=0.5), rule) == 1.0
    assert fit_temperature(*with_mistakes(ENOUGH_WRONG, sure=0.5), rule) < 0.5
    assert fit_temperature(*with_mistakes(3, sure=50.0), rule) > 5, "less sure they may make it"


def test_a_temperature_changes_no_single_heads_prediction() -> None:
    logits = torch.randn(1, 50, 4, generator=torch.Generator().manual_seed(0))
    before, after = (with_temperature(logits, t, "probabilities") for t in (1.0, 2.0))
    assert torch.equal(before.argmax(-1), after.argmax(-1))
    assert (after.max(-1).values < before.max(-1).values).all()
