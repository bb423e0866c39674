"""How good the model is by now, and whether more labels pay."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from cotrain.data import Dataset, Split
from cotrain.evaluation.calibration import SMALLEST
from cotrain.fitting.crossvalidation import FEWEST, folds_of
from cotrain.labelling.snapshot import Known, Point, Snapshot
from cotrain.ops import ensemble_probabilities

FOLDS = 4
RECENT = 50  # audit answers that count: older ones are about older models
EARLIER = 2 / 3  # of the labels, for the model that the present one is compared with
ENOUGH_TO_ADVISE = 30  # labels
SETTLED = 2.0  # percent of the images
BY_CHANCE = 1.2  # times what another seed changes
TEMPERATURES = np.geomspace(1, 10, 47)  # at least 1: labels of hard images are no evidence for more confidence
RESAMPLES = 1000

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
    def enough(self) -> bool:
        return len(self.rows) >= FEWEST


def held_out(train: Train, dataset: Dataset, split: Split, rule: str, seed: int) -> Iterator[HeldOut]:
    """Cross-validation over the labelled images, once: what is known so far, before the first fold and after each.

    A class with a single label keeps it.
    """
    rows, logits = list[int](), torch.zeros(1, 0, 2)
    yield HeldOut((), logits, dataset.labels[rows], rule)
    for fold in folds_of(split, dataset.labels, FOLDS, 1, seed):
        own = train(dataset, fold.split, fold.held)
        logits = torch.cat([logits, own], dim=1) if rows else own
        rows += fold.held.tolist()
        yield HeldOut(tuple(rows), logits, dataset.labels[rows], rule)


@dataclass(frozen=True)
class Calibration:
    """The temperature that fits the held-out labels, and the error to expect at it, in percent."""

    temperature: float
    error: float
    low: float
    high: float


def calibrated(found: HeldOut, unlabelled: Tensor, seed: int) -> Calibration | None:
    """The error to expect on the unlabelled images by the ensemble's probabilities (n, C) for them; None: few labels.

    The error over the held-out labels themselves would be far too high: images are asked for because they are hard, and
    no two of them are alike. So these labels only set the temperature of the probabilities. The error is then what the
    softened probabilities leave to the other classes, on average over the unlabelled images. The interval shows only
    how uncertain the temperature is (95 %, by resampling the held-out labels). Usually both are somewhat too high.
    """
    if not found.enough:
        return None
    own, others = (_logs(each) for each in (ensemble_probabilities(found.logits, found.rule), unlabelled))
    losses, errors = np.empty((len(TEMPERATURES), len(found.rows))), np.empty(len(TEMPERATURES))
    for place, temperature in enumerate(TEMPERATURES):
        losses[place] = cross_entropy(own / temperature, found.labels, reduction="none").numpy()
        errors[place] = 100 * (1 - float((others / temperature).softmax(dim=-1).amax(dim=-1).mean()))
    images = len(found.rows)
    counts = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=RESAMPLES)
    low, high = np.quantile(errors[(losses @ counts.T).argmin(axis=0)], [0.025, 0.975])
    best = int(losses.mean(axis=1).argmin())
    return Calibration(float(TEMPERATURES[best]), float(errors[best]), float(low), float(high))


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp(min=SMALLEST).log()


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
SOON = Advice(None, "The next estimate will tell whether more labels pay.")


def advice(labels: int, changed: float, by_chance: float) -> Advice:
    """Whether more labels pay, by the percentage of images whose predicted class the last third of the labels changed.

    The error cannot have fallen by more than this percentage. It is measured on all images, so that it does not matter
    which ones were labelled. Labels stop paying when it is small, or hardly more than what training with another seed
    changes (`by_chance`).
    """
    assert labels >= ENOUGH_TO_ADVISE
    said = f"The last {labels - round(EARLIER * labels)} labels changed the guess for {changed:.1f} % of the images"
    if changed <= SETTLED:
        return Advice(False, f"{said}: more labels hardly pay.")
    if changed <= BY_CHANCE * by_chance:
        return Advice(False, f"{said}, hardly more than chance does: more labels hardly pay.")
    return Advice(True, f"{said}: more labels still pay.")


def earlier_advice(earlier: Snapshot | None, labels: int) -> Advice:
    """The advice until the next estimate."""
    if earlier is not None and earlier.paying is not None:
        return Advice(earlier.paying, earlier.advice)
    return TOO_EARLY if labels < ENOUGH_TO_ADVISE else SOON
