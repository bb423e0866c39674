"""The figures about a run's test images, for the report and for TensorBoard."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cotrain.evaluation.calibration import FITTED, PAPER, UNCALIBRATED, Calibrated
from cotrain.evaluation.confusion import Counts
from cotrain.evaluation.results import Results
from cotrain.report import figures
from cotrain.report.figures import ON_PAGE, Figure, Palette
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs
from cotrain.types import Unit

READABLE = 20  # classes; with more, the confusion matrix is a picture without numbers
WORDS = {
    UNCALIBRATED: "uncalibrated",
    PAPER: "the paper's temperature",
    FITTED: "fitted temperature",
}
IN_SHORT = (
    "Short lines on the dashed diagonal mean that the probabilities can be trusted; below it the network is "
    "overconfident, above it underconfident."
)


@dataclass(frozen=True)
class Drawn:
    """The figures about the test images."""

    diagrams: list[Figure]  # reliability at each temperature
    risk: Figure
    heat_map: Figure | None  # only if there are too many classes for a table


def how_to_read_reliability(unit: Unit) -> str:
    return (
        "Top: the accuracy in each confidence bin (short lines) and its gap to the mean confidence of the bin "
        "(orange). Lines on the dashed diagonal mean that the probabilities can be trusted; below it the network is "
        f"overconfident, above it underconfident. Bottom: the share of {unit.many} in each bin, with the overall "
        "accuracy (solid) and the mean confidence (dashed)."
    )


def baseline_outputs(run: Run, classes: Sequence[str]) -> Outputs | None:
    """The baseline's outputs for the test images, if there is a baseline."""
    exists = (run.baseline_folder / run.scores_path.name).exists()
    return Run.open(run.baseline_folder).outputs(len(classes)).get("test") if exists else None


def drawn(results: Results, baseline: Outputs | None, unit: Unit, palette: Palette = ON_PAGE) -> Drawn:
    curves = {"this run": results.risk}
    if baseline is not None:
        curves["baseline"] = Results(baseline, results.rule).risk
    caption = (
        f"From left to right, more {unit.many} are answered, the most confident first; the rest would go to a person. "
        "The lower the curve, the better the confidence (uncalibrated, T = 1) separates correct predictions from "
        "mistakes. Its right end is the test error. The area under it (AURC) is the mean over all coverages. AURC of "
        f"this run: {results.aurc:.2f} %."
    )
    return Drawn(
        diagrams=[_diagram(palette, one, unit) for one in results.calibrated],
        risk=figures.risk_coverage_curve(palette, curves, unit, caption),
        heat_map=heat_map_of(palette, results.confused, unit) if len(results.confused) > READABLE else None,
    )


def _diagram(palette: Palette, one: Calibrated, unit: Unit) -> Figure:
    name, confidence, accuracy = WORDS[one.kind], one.numbers.confidence, one.numbers.accuracy
    what = f"{name[0].upper()}{name[1:]}, T = {one.temperature:.2f}: ECE {one.numbers.ece:.2f}\N{NO-BREAK SPACE}%."
    overall = f"Overall confidence {confidence:.1f}\N{NO-BREAK SPACE}%, accuracy {accuracy:.1f}\N{NO-BREAK SPACE}%."
    return figures.reliability_diagram(palette, one.reliability, unit, f"{what} {IN_SHORT} {overall}")


def heat_map_of(palette: Palette, confused: Counts, unit: Unit) -> Figure:
    caption = (
        "Each row is a label and each column a predicted class, numbered as in the table of classes. The stronger the "
        "colour, the larger the share of the row (square-root scale). Everything off the diagonal is a mistake; a row "
        f"without colour has no test {unit.many}."
    )
    images = confused.sum(axis=1, keepdims=True)
    shares = np.divide(confused, images, where=images > 0, out=np.full(confused.shape, np.nan))
    return figures.heat_map(palette, shares, caption)
