"""Calibration: how well probabilities match the accuracy, and temperatures that improve the match.

Probabilities are (n, C) float64 of an ensemble or of one head, labels (n,). Calibration errors are in percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.ops import ensemble_probabilities
from cotrain.runs.scores import Outputs

BINS = 10
PAPER_TEMPERATURE = 2.0
UNCALIBRATED, PAPER, FITTED = "as it is", "paper", "fitted"  # kinds of temperature; keys of result.json
SMALLEST = 1e-12  # avoids the logarithm of zero
LARGEST = 20.0  # fitted temperatures are between 1/20 and 20
ENOUGH_WRONG = 10  # misclassified images: with fewer, no temperature below 1 is fitted


@dataclass(frozen=True)
class Reliability:
    """The paper's diagram: confidence bins of equal width, each including its upper edge. Empty bins are NaN."""

    edges: NDArray[np.float64]  # (bins + 1,)
    images: NDArray[np.int64]  # (bins,)
    accuracy: NDArray[np.float64]  # (bins,)
    confidence: NDArray[np.float64]  # (bins,)

    @property
    def gap(self) -> float:
        """Expected calibration error."""
        return self._mean(abs(self.accuracy - self.confidence))

    @property
    def mean_accuracy(self) -> float:
        """Percent, over all images."""
        return self._mean(self.accuracy)

    @property
    def mean_confidence(self) -> float:
        """Percent, over all images."""
        return self._mean(self.confidence)

    def _mean(self, by_bin: NDArray[np.float64]) -> float:
        return 100 * float(np.nansum(self.images * by_bin)) / max(int(self.images.sum()), 1)


@dataclass(frozen=True)
class Calibration:
    """Calibration metrics of a set of predictions."""

    accuracy: float  # percent
    confidence: float  # percent, the mean
    ece: float  # percent, bins of equal width
    adaptive_ece: float  # percent, bins with equal numbers of images
    nll: float
    brier: float


def calibration(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Calibration:
    confidence, right = confidence_and_right(probabilities, labels)
    return Calibration(
        accuracy=100 * float(right.mean()),
        confidence=100 * float(confidence.mean()),
        ece=expected_calibration_error(probabilities, labels, bins),
        adaptive_ece=adaptive_calibration_error(confidence, right, bins),
        nll=negative_log_likelihood(probabilities, labels),
        brier=brier_score(probabilities, labels),
    )


def confidence_and_right(probabilities: Tensor, labels: Tensor) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The highest probability of each image, and whether that class is the label."""
    confidence, predicted = probabilities.double().max(dim=-1)
    return confidence.numpy(), (predicted == labels).numpy()


def reliability(confidence: NDArray[np.float64], right: NDArray[np.bool_], bins: int = BINS) -> Reliability:
    edges = np.linspace(0, 1, bins + 1)
    bin_of = np.searchsorted(edges[1:-1], confidence)
    images = np.bincount(bin_of, minlength=bins)
    sums = [np.bincount(bin_of, values, minlength=bins) for values in (right.astype(np.float64), confidence)]
    accuracy, mean = (np.divide(total, images, where=images > 0, out=np.full(bins, np.nan)) for total in sums)
    return Reliability(edges, images, accuracy, mean)


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    return reliability(*confidence_and_right(probabilities, labels), bins).gap


def adaptive_calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_], bins: int = BINS) -> float:
    """The calibration error over bins with equal numbers of images; at most one bin per image."""
    order, share = np.argsort(confidence, kind="stable"), mean_of_ties(confidence, right)
    parts = [part for part in np.array_split(order, bins) if len(part)]
    gaps = [len(part) * abs(share[part].mean() - confidence[part].mean()) for part in parts]
    return 100 * float(sum(gaps)) / len(order)


def mean_of_ties(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The accuracy among the images of equal confidence. They have no order, so each gets their mean."""
    _, group = np.unique(confidence, return_inverse=True)
    return (np.bincount(group, right) / np.bincount(group))[group]


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    of_label = probabilities.double().gather(-1, labels[:, None]).clamp(min=SMALLEST)
    return -of_label.log().mean().item()


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """Mean squared distance to the one-hot label, summed over classes: 0 to 2."""
    target = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
    return (probabilities.double() - target).square().sum(dim=-1).mean().item()


def with_temperature(logits: Tensor, temperature: float, rule: str) -> Tensor:
    """The ensemble's probabilities if the heads' logits (H, n, C) are divided by the temperature."""
    return ensemble_probabilities(logits / temperature, rule)


def fit_temperature(logits: Tensor, labels: Tensor, rule: str) -> float:
    """The temperature between 1/20 and 20 that maximises the likelihood of these labels (held out from training).

    If fewer than ten images are misclassified, it is at least 1. Without mistakes, the likelihood is highest at the
    lowest temperature, where every prediction looks certain. So few mistakes are too little evidence to raise the
    confidence, while lowering it does no harm.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    def cost(log_temperature: float) -> float:
        return negative_log_likelihood(with_temperature(logits.double(), float(np.exp(log_temperature)), rule), labels)

    lowest = 0.0 if count_wrong(logits, labels, rule) < ENOUGH_WRONG else -np.log(LARGEST)
    inside = float(minimize_scalar(cost, bounds=(lowest, np.log(LARGEST)), method="bounded").x)
    return float(np.exp(min(lowest, inside, key=cost)))


def predicted_and_confidence(logits: Tensor, rule: str, temperature: float) -> tuple[Tensor, Tensor]:
    """The ensemble's classes (n,) and their calibrated probabilities (n,), as `predict` reports them."""
    predicted = ensemble_probabilities(logits, rule).argmax(dim=-1)
    return predicted, with_temperature(logits, temperature, rule).gather(-1, predicted[:, None])[:, 0]


def count_wrong(logits: Tensor, labels: Tensor, rule: str) -> int:
    """The number of images that the ensemble misclassifies."""
    return int((ensemble_probabilities(logits, rule).argmax(dim=-1) != labels).sum())


@dataclass(frozen=True)
class Calibrated:
    """Calibration of an ensemble or of one head at one temperature."""

    kind: str
    temperature: float
    reliability: Reliability
    numbers: Calibration


def fitted_on(valid: Outputs | None, rule: str) -> float | None:
    """The temperature fitted on the validation images, if there are any."""
    return None if valid is None else fit_temperature(valid.logits, valid.labels, rule)


def temperatures(fitted: float | None) -> dict[str, float]:
    """The temperatures at which calibration is reported, by kind."""
    return {UNCALIBRATED: 1.0, PAPER: PAPER_TEMPERATURE, **({} if fitted is None else {FITTED: fitted})}


def calibrated(outputs: Outputs, rule: str, used: Mapping[str, float], bins: int = BINS) -> list[Calibrated]:
    """Calibration at each of these temperatures."""
    rows = []
    for kind, temperature in used.items():
        probabilities = with_temperature(outputs.logits, temperature, rule)
        diagram = reliability(*confidence_and_right(probabilities, outputs.labels), bins)
        rows.append(Calibrated(kind, temperature, diagram, calibration(probabilities, outputs.labels, bins)))
    return rows
