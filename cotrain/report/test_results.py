"""What the page says of a run's test images, from scores.npz."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotrain.evaluation import confusion
from cotrain.evaluation.calibration import (
    AS_IT_IS,
    BINS,
    FITTED,
    PAPER,
    Calibrated,
    calibrated,
    confidence_and_right,
    said_and_sureness,
    temperatures,
)
from cotrain.evaluation.head_stats import Heads, heads_of
from cotrain.evaluation.outputs import error_interval
from cotrain.evaluation.selective import error_bound, risk_coverage
from cotrain.ops import ensemble_probabilities, error_percent
from cotrain.report import figures
from cotrain.report.figures import ON_PAGE, Figure, Palette
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs

READABLE = 20  # classes; of more the confusion matrix is a picture without numbers
WORDS = {
    AS_IT_IS: "as it is",
    PAPER: "the paper's temperature",
    FITTED: "temperature fitted on valid images",
}
COVERAGES = (0.95, 0.9, 0.8, 0.5)
DIGITS = 6  # of a threshold, at most
RELIABILITY = (
    "Above: of the images in a bin of confidence, how many are right (short lines), and how far that is from their "
    "mean confidence (orange). Lines on the dashed diagonal mean that a probability can be believed; below it the "
    "network is too sure, above it not sure enough. Below: how many images there are in each bin, with the accuracy "
    "(solid) and the mean confidence (dashed)."
)
IN_SHORT = (
    "Short lines on the dashed diagonal: such probabilities can be believed; below it the network is too sure, above "
    "it not sure enough."
)
RISK = (
    "From left to right more images are answered, the surest first; the rest would go to a person. The lower the "
    "curve, the better the confidence (as it is, T = 1) tells right from wrong; its right end is the test error. The "
    "area under it is AURC, the mean over all coverages."
)
HEAT_MAP = (
    "A row is a label, a column the class that was said, both numbered as in the table of classes. The stronger the "
    "colour, the larger the share of the row (square root). Off the diagonal are mistakes; a row without colour has no "
    "test image."
)


@dataclass(frozen=True)
class Answered:
    """What comes of answering from a probability on."""

    probability: float
    answered: int
    wrong: int  # of those
    share: float  # answered, of all test images
    error: float
    bound: float  # the error is at most this, with 95 % confidence


@dataclass(frozen=True)
class Tested:
    """All that the labels of the test images tell. Percent, unless it says otherwise."""

    images: int
    error: float
    interval: tuple[float, float]
    bins: int
    calibrated: list[Calibrated]  # the ensemble, with each temperature
    calibrated_heads: list[list[Calibrated]]  # each head, with the same; none of a single head
    diagrams: list[Figure]
    risk: Figure
    aurc: float
    temperature: float | None  # fitted on valid images, if there were any: predict has it too
    answered: list[Answered]
    confused: confusion.Counts
    heat_map: Figure | None  # where there are too many classes for a table
    worst: list[confusion.Confusion]
    by_class: confusion.ByClass
    heads: Heads


def outputs_alone(run: Run, classes: Sequence[str]) -> Outputs | None:
    """What the labelled-only network said of the test images, if there is one."""
    begun = (run.baseline_folder / run.scores_path.name).exists()
    return Run.open(run.baseline_folder).outputs(len(classes)).get("test") if begun else None


def tested(
    parts: dict[str, Outputs],
    labelled_only: Outputs | None,
    rule: str,
    temperature: float | None,
    palette: Palette = ON_PAGE,
    *,
    bins: int = BINS,
) -> Tested:
    """`temperature` is the one that was fitted on valid images, if there were any."""
    test = parts["test"]
    classes = test.logits.shape[-1]
    probabilities = ensemble_probabilities(test.logits, rule)
    said = probabilities.argmax(dim=-1)
    confidence, right = confidence_and_right(probabilities, test.labels)
    confused = confusion.confusion(said, test.labels, classes)
    curve = risk_coverage(confidence, right)
    both = {"this run": curve}
    if labelled_only is not None:
        alone = ensemble_probabilities(labelled_only.logits, rule)
        both["labelled only"] = risk_coverage(*confidence_and_right(alone, labelled_only.labels))
    used = temperatures(temperature)
    with_each = calibrated(test, rule, used, bins)
    _, sureness = said_and_sureness(test.logits, rule, temperature or 1.0)
    return Tested(
        images=len(right),
        error=error_percent(said, test.labels),
        interval=error_interval(int((~right).sum()), len(right)),
        bins=bins,
        calibrated=with_each,
        calibrated_heads=[calibrated(head, rule, used, bins) for head in test.of_each_head if len(test.logits) > 1],
        diagrams=[_diagram(palette, one) for one in with_each],
        risk=figures.risk_coverage_curve(palette, both, f"{RISK} AURC of this run: {100 * curve.area:.2f} %."),
        aurc=100 * curve.area,
        temperature=temperature,
        answered=answered_from(sureness.double().numpy(), right),
        confused=confused,
        heat_map=heat_map_of(palette, confused) if classes > READABLE else None,
        worst=confusion.worst_confusions(confused),
        by_class=confusion.by_class(confused),
        heads=heads_of(test.logits, test.labels),
    )


def answered_from(sureness: NDArray[np.float64], right: NDArray[np.bool_]) -> list[Answered]:
    """From 0 on, and from thresholds that answer about so many as COVERAGES say; `predict` would answer the same."""
    surest = np.sort(sureness)[::-1]
    thresholds = {0.0, *(_short(surest, max(1, round(share * len(right)))) for share in COVERAGES)}
    rows = []
    for threshold in sorted(thresholds):
        kept = sureness >= threshold
        answered, wrong = int(kept.sum()), int((kept & ~right).sum())
        share, error = 100 * answered / len(right), 100 * wrong / answered
        rows.append(Answered(threshold, answered, wrong, share, error, 100 * error_bound(wrong, answered, 0.95)))
    return rows


def _short(surest: NDArray[np.float64], wanted: int) -> float:
    """A threshold that answers so many of them, with as few digits as that takes."""
    needed = int((surest >= surest[wanted - 1]).sum())
    short = 0.0
    for digits in range(1, DIGITS + 1):
        short = float(np.floor(surest[wanted - 1] * 10**digits)) / 10**digits
        if int((surest >= short).sum()) == needed:
            break
    return short


def _diagram(palette: Palette, one: Calibrated) -> Figure:
    name, sure, right = WORDS[one.kind], one.numbers.confidence, one.numbers.accuracy
    what = f"{name[0].upper()}{name[1:]}, T = {one.temperature:.2f}: ECE {one.numbers.ece:.2f}\N{NO-BREAK SPACE}%."
    on_the_whole = f"On the whole {sure:.1f}\N{NO-BREAK SPACE}% sure and {right:.1f}\N{NO-BREAK SPACE}% right."
    return figures.reliability_diagram(palette, one.reliability, f"{what} {IN_SHORT} {on_the_whole}")


def heat_map_of(palette: Palette, confused: confusion.Counts) -> Figure:
    images = confused.sum(axis=1, keepdims=True)
    shares = np.divide(confused, images, where=images > 0, out=np.full(confused.shape, np.nan))
    return figures.heat_map(palette, shares, HEAT_MAP)
