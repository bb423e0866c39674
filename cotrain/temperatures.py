"""How far what a model said can be believed, with each of the temperatures that its logits may be divided by."""

from collections.abc import Mapping
from dataclasses import dataclass

from cotrain.calibrate import (
    BINS,
    PAPER_TEMPERATURE,
    Calibration,
    Reliability,
    calibration,
    confidence_and_right,
    fit_temperature,
    reliability,
    with_temperature,
)
from cotrain.evaluate import Outputs

AS_IT_IS, PAPER, FITTED = "as it is", "paper", "fitted"  # kinds of temperatures, as result.json calls them


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
