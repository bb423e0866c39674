"""Whether a probability can be believed, and how to make it more believable.

Probabilities are (n, C) float64 of an ensemble or of one head, labels (n,). Errors of calibration are in percent.
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
AS_IT_IS, PAPER, FITTED = "as it is", "paper", "fitted"  # kinds of temperatures, as result.json calls them
SMALLEST = 1e-12  # a probability of zero would make the likelihood infinite
WIDEST = 20.0  # a fitted temperature is between 1/20 and 20
ENOUGH_WRONG = 10  # images: with fewer mistakes among them no temperature below 1 is believed


@dataclass(frozen=True)
class Reliability:
    """The paper's diagram: equal bins of confidence, a bin includes its upper edge; what no image falls into is nan."""

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
        """Percent, of all images."""
        return self._mean(self.accuracy)

    @property
    def mean_confidence(self) -> float:
        """Percent, of all images."""
        return self._mean(self.confidence)

    def _mean(self, of_bins: NDArray[np.float64]) -> float:
        return 100 * float(np.nansum(self.images * of_bins)) / max(int(self.images.sum()), 1)


@dataclass(frozen=True)
class Calibration:
    """How far probabilities are from what they say."""

    accuracy: float  # percent
    confidence: float  # percent, the mean
    ece: float  # percent, in equal bins of confidence
    adaptive_ece: float  # percent, in bins of equally many images
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
    """As the expected one, in bins of equally many images; there are fewer bins where there are not so many images."""
    order, share = np.argsort(confidence, kind="stable"), mean_of_ties(confidence, right)
    parts = [part for part in np.array_split(order, bins) if len(part)]
    gaps = [len(part) * abs(share[part].mean() - confidence[part].mean()) for part in parts]
    return 100 * float(sum(gaps)) / len(order)


def mean_of_ties(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """How many are right among the images of the same confidence: these have no order, so each gets their mean."""
    _, group = np.unique(confidence, return_inverse=True)
    return (np.bincount(group, right) / np.bincount(group))[group]


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    of_label = probabilities.double().gather(-1, labels[:, None]).clamp(min=SMALLEST)
    return -of_label.log().mean().item()


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """Squared distance to the label, summed over classes: 0 to 2."""
    target = torch.nn.functional.one_hot(labels, probabilities.shape[-1])
    return (probabilities.double() - target).square().sum(dim=-1).mean().item()


def with_temperature(logits: Tensor, temperature: float, rule: str) -> Tensor:
    """Probabilities of the ensemble whose heads' logits (H, n, C) are divided by the temperature."""
    return ensemble_probabilities(logits / temperature, rule)


def fit_temperature(logits: Tensor, labels: Tensor, rule: str) -> float:
    """The temperature, between 1/20 and 20, under which these labels are most likely. They must not be trained on.

    Where fewer than ten images are wrong it is at least 1. The likelihood of labels that are all met is best at the
    lowest temperature there is, with which everything looks certain: so few mistakes are no evidence for more
    certainty, while less of it does no harm.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    def cost(log_temperature: float) -> float:
        return negative_log_likelihood(with_temperature(logits.double(), float(np.exp(log_temperature)), rule), labels)

    lowest = 0.0 if count_wrong(logits, labels, rule) < ENOUGH_WRONG else -np.log(WIDEST)
    inside = float(minimize_scalar(cost, bounds=(lowest, np.log(WIDEST)), method="bounded").x)
    return float(np.exp(min(lowest, inside, key=cost)))


def said_and_sureness(logits: Tensor, rule: str, temperature: float) -> tuple[Tensor, Tensor]:
    """The ensemble's classes (n,), and their probabilities as `predict` gives them."""
    said = ensemble_probabilities(logits, rule).argmax(dim=-1)
    return said, with_temperature(logits, temperature, rule).gather(-1, said[:, None])[:, 0]


def count_wrong(logits: Tensor, labels: Tensor, rule: str) -> int:
    """Images whose label is not the ensemble's class."""
    return int((ensemble_probabilities(logits, rule).argmax(dim=-1) != labels).sum())


@dataclass(frozen=True)
class Calibrated:
    """Of an ensemble or one head, with one temperature."""

    kind: str
    temperature: float
    reliability: Reliability
    numbers: Calibration


def fitted_on(valid: Outputs | None, rule: str) -> float | None:
    """The temperature that suits these images, if there are any."""
    return None if valid is None else fit_temperature(valid.logits, valid.labels, rule)


def temperatures(fitted: float | None) -> dict[str, float]:
    """By their kinds, those that calibration is shown with."""
    return {AS_IT_IS: 1.0, PAPER: PAPER_TEMPERATURE, **({} if fitted is None else {FITTED: fitted})}


def calibrated(outputs: Outputs, rule: str, used: Mapping[str, float], bins: int = BINS) -> list[Calibrated]:
    """With each of these temperatures."""
    found = []
    for kind, temperature in used.items():
        probabilities = with_temperature(outputs.logits, temperature, rule)
        diagram = reliability(*confidence_and_right(probabilities, outputs.labels), bins)
        found.append(Calibrated(kind, temperature, diagram, calibration(probabilities, outputs.labels, bins)))
    return found
