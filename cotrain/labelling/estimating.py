"""How good the model is by now, and whether more labels pay."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.data import Dataset, Split
from cotrain.evaluation.calibration import SMALLEST, fit_temperature
from cotrain.labelling.snapshot import Known, Point, Snapshot
from cotrain.ops import ensemble_probabilities
from cotrain.pipeline.crossvalidation import FEWEST, estimate, folds_of

FOLDS = 4
RECENT = 50  # audit answers that count: older ones are about older models
EARLIER = 2 / 3  # of the labels, for the model that the present one is compared with
ENOUGH_TO_ADVISE = 30  # labels
SETTLED = 2.0  # percent of the images

Train = Callable[[Dataset, Split, NDArray[np.int64]], Tensor]  # data, split, rows -> logits (H, n, C)


@dataclass(frozen=True)
class HeldOut:
    """Outputs for labelled images of heads that were trained without their labels."""

    rows: tuple[int, ...]
    logits: Tensor  # (H, n, C)
    labels: Tensor  # (n,)
    rule: str  # of the ensemble

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """(n, C)."""
        return ensemble_probabilities(self.logits, self.rule).numpy().astype(np.float32)

    @property
    def wrong(self) -> NDArray[np.float64]:
        return (self.probabilities.argmax(axis=1) != self.labels.numpy()).astype(np.float64)

    @property
    def enough(self) -> bool:
        return len(self.rows) >= FEWEST


def held_out(train: Train, dataset: Dataset, split: Split, rule: str, seed: int) -> HeldOut:
    """Cross-validation over the labelled images, once. A class with a single label keeps it."""
    folds = folds_of(split, dataset.labels, FOLDS, 1, seed)
    rows = [row for fold in folds for row in fold.held.tolist()]
    logits = [train(dataset, fold.split, fold.held) for fold in folds]
    return HeldOut(tuple(rows), torch.cat(logits, dim=1) if rows else torch.zeros(1, 0, 2), dataset.labels[rows], rule)


def cross_validation_point(found: HeldOut, labels: int) -> Point | None:
    """The error over the held-out labels; None if there are too few to say.

    It is biased if the labelled images were chosen for being informative: these are harder than the others, so the
    error on all images is usually lower.
    """
    if not found.enough:
        return None
    measured = estimate(found.wrong)
    return Point(labels, measured.error, measured.low, measured.high, "cross-validation")


def temperature_of(found: HeldOut) -> float | None:
    """The temperature of the ensemble's probabilities that fits the held-out labels best; None with too few labels.

    At least 1: harder images are asked first, so that these labels are no evidence for more confidence.
    """
    if not found.enough:
        return None
    ensemble = ensemble_probabilities(found.logits, found.rule).clamp(min=SMALLEST).log()
    return max(1.0, fit_temperature(ensemble[None], found.labels, found.rule))


def audit_point(known: Known) -> Point | None:
    """The error of the guesses for randomly chosen images, without bias, with the exact (Clopper-Pearson) interval."""
    from scipy.stats import binomtest  # slow to import

    answers = [*known.audit.values()][-RECENT:]
    if not answers:
        return None
    wrong = answers.count(False)
    interval = binomtest(wrong, len(answers)).proportion_ci(0.95, method="exact")
    error = 100 * wrong / len(answers)
    return Point(len(known.labels), error, 100 * float(interval.low), 100 * float(interval.high), "audit")


def extended(curve: tuple[Point, ...], *points: Point | None) -> tuple[Point, ...]:
    """The curve with new points. An audit without new answers adds none; a point for as many labels is replaced."""
    for point in points:
        last = next((each for each in reversed(curve) if point and each.by == point.by), None)
        if point is None or (
            point.by == "audit"
            and last is not None
            and (last.error, last.low, last.high) == (point.error, point.low, point.high)
        ):
            continue
        curve = (*(each for each in curve if (each.by, each.labels) != (point.by, point.labels)), point)
    return curve


@dataclass(frozen=True)
class Advice:
    paying: bool | None
    words: str


TOO_EARLY = Advice(None, f"Label at least {ENOUGH_TO_ADVISE} images to see whether more labels pay.")


def advice(labels: int, changed: float | None) -> Advice:
    """Whether more labels pay, by the percentage of images whose predicted class the last third of the labels changed.

    The error cannot have fallen by more than this percentage. It is measured on all images, so that it does not matter
    which ones were labelled.
    """
    if labels < ENOUGH_TO_ADVISE or changed is None:
        return TOO_EARLY
    before = round(EARLIER * labels)
    said = f"Since {before} labels, {changed:.1f} % of all images changed their predicted class"
    if changed <= SETTLED:
        return Advice(False, f"{said}: more labels hardly pay.")
    return Advice(True, f"{said}: more labels still pay.")


def earlier_advice(earlier: Snapshot | None) -> Advice:
    return Advice(earlier.paying, earlier.advice) if earlier else TOO_EARLY


def percent_changed(before: Tensor, now: Tensor) -> float:
    return 100 * float((before != now).to(torch.float64).mean())
