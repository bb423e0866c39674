"""What the page says of a run's test images, from scores.npz."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cotrain import figures, findings
from cotrain.calibrate import (
    Calibration,
    calibration,
    confidence_and_right,
    reliability,
    with_temperature,
)
from cotrain.evaluate import Outputs, error_interval, read_outputs, temperatures
from cotrain.figures import ON_PAGE, Figure, Palette
from cotrain.heads import Heads, heads_of
from cotrain.ops import ensemble_probabilities, error_percent
from cotrain.selective import risk_coverage
from cotrain.types import UserError

READABLE = 20  # classes; of more the confusion matrix is a picture without numbers
WORDS = {
    "as it is": "as it is",
    "paper": "the paper's temperature",
    "fitted": "temperature fitted on valid images",
}
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)
RELIABILITY = (
    "Above: of the images in a bin of confidence, how many are right (short lines), and how far that is from their "
    "mean confidence (orange). Lines on the dashed diagonal mean that a probability can be believed; below it the "
    "network is too sure, above it not sure enough. Below: how many images there are in each bin, with the accuracy "
    "(solid) and the mean confidence (dashed)."
)
RISK = (
    "From left to right more images are answered, the surest first; the rest would go to a person. The lower the "
    "curve, the better the confidence tells right from wrong; its right end is the test error. The area under it is "
    "AURC, the mean over all coverages."
)
HEAT_MAP = (
    "A row is a label, a column the class that was said, both numbered as in the table of classes. The stronger the "
    "colour, the larger the share of the row (square root). Off the diagonal are mistakes; a row without colour has no "
    "test image."
)


@dataclass(frozen=True)
class Calibrated:
    name: str
    temperature: float
    numbers: Calibration


@dataclass(frozen=True)
class Tested:
    """All that the labels of the test images tell. Percent, unless it says otherwise."""

    images: int
    error: float
    interval: tuple[float, float]
    calibrated: list[Calibrated]
    diagrams: list[Figure]
    risk: Figure
    aurc: float
    answered: list[tuple[float, float]]  # coverage, error
    confused: findings.Counts
    heat_map: Figure | None  # where there are too many classes for a table
    worst: list[findings.Confusion]
    by_class: findings.ByClass
    heads: Heads


def checked_outputs(path: Path, classes: Sequence[str]) -> dict[str, Outputs]:
    """scores.npz, if it is of a model with these classes."""
    parts = read_outputs(path)
    for part, outputs in parts.items():
        logits, labels, images = outputs.logits, outputs.labels, len(outputs.rows)
        if logits.ndim != 3 or logits.shape[1:] != (images, len(classes)) or labels.shape != (images,) or not images:
            raise UserError(
                f"{path} is not of this model: its {part} logits are {tuple(logits.shape)} for {len(labels)} labels, "
                f"and there are {len(classes)} classes"
            )
        if not logits.isfinite().all() or labels.min() < 0 or labels.max() >= len(classes):
            raise UserError(f"{path} is damaged: a logit is not a number, or a label is none of the classes ({part})")
    return parts


def tested(parts: dict[str, Outputs], labelled_only: Outputs | None, rule: str, palette: Palette = ON_PAGE) -> Tested:
    test = parts["test"]
    classes = test.logits.shape[-1]
    probabilities = ensemble_probabilities(test.logits, rule)
    said = probabilities.argmax(dim=-1)
    confidence, right = confidence_and_right(probabilities, test.labels)
    confused = findings.confusion(said, test.labels, classes)
    curve = risk_coverage(confidence, right)
    both = {"this run": curve}
    if labelled_only is not None:
        alone = ensemble_probabilities(labelled_only.logits, rule)
        both["labelled only"] = risk_coverage(*confidence_and_right(alone, labelled_only.labels))
    named = {WORDS[name]: each for name, each in temperatures(parts.get("valid"), rule).items()}
    at_whole = {share: max(1, round(share * len(right))) for share in COVERAGES}
    return Tested(
        images=len(right),
        error=error_percent(said, test.labels),
        interval=error_interval(int((~right).sum()), len(right)),
        calibrated=[
            *(
                Calibrated(name, each, calibration(with_temperature(test.logits, each, rule), test.labels))
                for name, each in named.items()
            ),
            *_of_heads(test),
        ],
        diagrams=[_diagram(palette, test, name, each, rule) for name, each in named.items()],
        risk=figures.risk_coverage_curve(palette, both, f"{RISK} AURC of this run: {100 * curve.area:.2f} %."),
        aurc=100 * curve.area,
        answered=[(100 * share, 100 * float(curve.risk[answered - 1])) for share, answered in at_whole.items()],
        confused=confused,
        heat_map=_heat_map(palette, confused) if classes > READABLE else None,
        worst=findings.worst_confusions(confused),
        by_class=findings.by_class(confused),
        heads=heads_of(test.logits, test.labels),
    )


def _of_heads(test: Outputs) -> list[Calibrated]:
    heads = test.logits if len(test.logits) > 1 else test.logits[:0]
    return [
        Calibrated(f"head {number}", 1.0, calibration(head.double().softmax(dim=-1), test.labels))
        for number, head in enumerate(heads, start=1)
    ]


def _diagram(palette: Palette, test: Outputs, name: str, temperature: float, rule: str) -> Figure:
    probabilities = with_temperature(test.logits, temperature, rule)
    confidence, right = confidence_and_right(probabilities, test.labels)
    found = reliability(confidence, right)
    what = f"{name[0].upper()}{name[1:]}, T = {temperature:.2f}: ECE {found.gap:.2f}\N{NO-BREAK SPACE}%."
    return figures.reliability_diagram(palette, found, 100 * float(right.mean()), 100 * float(confidence.mean()), what)


def _heat_map(palette: Palette, confused: findings.Counts) -> Figure:
    images = confused.sum(axis=1, keepdims=True)
    shares = np.divide(confused, images, where=images > 0, out=np.full(confused.shape, np.nan))
    return figures.heat_map(palette, shares, HEAT_MAP)
