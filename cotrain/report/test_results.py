"""The figures of a run's test images, for the page and for TensorBoard."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cotrain.evaluation.calibration import AS_IT_IS, FITTED, PAPER, Calibrated
from cotrain.evaluation.confusion import Counts
from cotrain.evaluation.results import Results
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
class Drawn:
    """The figures of the test images."""

    diagrams: list[Figure]  # of reliability, with each temperature
    risk: Figure
    heat_map: Figure | None  # where there are too many classes for a table


def baseline_outputs(run: Run, classes: Sequence[str]) -> Outputs | None:
    """What the labelled-only network predicted for the test images, if there is one."""
    begun = (run.baseline_folder / run.scores_path.name).exists()
    return Run.open(run.baseline_folder).outputs(len(classes)).get("test") if begun else None


def drawn(results: Results, labelled_only: Outputs | None, palette: Palette = ON_PAGE) -> Drawn:
    curves = {"this run": results.risk}
    if labelled_only is not None:
        curves["labelled only"] = Results(labelled_only, results.rule).risk
    return Drawn(
        diagrams=[_diagram(palette, one) for one in results.calibrated],
        risk=figures.risk_coverage_curve(palette, curves, f"{RISK} AURC of this run: {results.aurc:.2f} %."),
        heat_map=heat_map_of(palette, results.confused) if len(results.confused) > READABLE else None,
    )


def _diagram(palette: Palette, one: Calibrated) -> Figure:
    name, sure, right = WORDS[one.kind], one.numbers.confidence, one.numbers.accuracy
    what = f"{name[0].upper()}{name[1:]}, T = {one.temperature:.2f}: ECE {one.numbers.ece:.2f}\N{NO-BREAK SPACE}%."
    on_the_whole = f"On the whole {sure:.1f}\N{NO-BREAK SPACE}% sure and {right:.1f}\N{NO-BREAK SPACE}% right."
    return figures.reliability_diagram(palette, one.reliability, f"{what} {IN_SHORT} {on_the_whole}")


def heat_map_of(palette: Palette, confused: Counts) -> Figure:
    images = confused.sum(axis=1, keepdims=True)
    shares = np.divide(confused, images, where=images > 0, out=np.full(confused.shape, np.nan))
    return figures.heat_map(palette, shares, HEAT_MAP)
