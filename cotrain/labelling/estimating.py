"""How good the model is by now, and whether more labels pay."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.data import Dataset, Split
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
    """Predictions for labelled images by heads that were trained without their labels. Keys are rows."""

    probabilities: Mapping[int, NDArray[np.float32]]
    votes: Mapping[int, NDArray[np.int64]]  # class of each head

    def wrong(self, labels: Mapping[int, int]) -> NDArray[np.float64]:
        return np.array([labels[row] != each.argmax() for row, each in self.probabilities.items()], float)


def held_out(train: Train, dataset: Dataset, split: Split, rule: str, seed: int) -> HeldOut:
    """Cross-validation over the labelled images, once. A class with a single label keeps it."""
    probabilities, votes = {}, {}
    for fold in folds_of(split, dataset.labels, FOLDS, 1, seed):
        logits = train(dataset, fold.split, fold.held)
        ensemble = ensemble_probabilities(logits, rule).numpy().astype(np.float32)
        for place, row in enumerate(fold.held.tolist()):
            probabilities[row], votes[row] = ensemble[place], logits[:, place].argmax(dim=-1).numpy()
    return HeldOut(probabilities, votes)


def cross_validation_point(found: HeldOut, labels: Mapping[int, int]) -> Point | None:
    """The error over the held-out labels; None if there are too few to say.

    It is biased if the labelled images were chosen for being informative: these are harder than the others, so the
    error on all images is usually lower.
    """
    if len(found.probabilities) < FEWEST:
        return None
    measured = estimate(found.wrong(labels))
    return Point(len(labels), measured.error, measured.low, measured.high, "cross-validation")


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
