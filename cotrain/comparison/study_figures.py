"""The figures of the studies."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from cotrain.comparison.case import CaseResult
from cotrain.evaluation.calibration import Reliability
from cotrain.report.figures import Figure, Palette, axes_at, draw_reliability, drawing, legend_above
from cotrain.types import Unit

SHIFT = 0.16  # between two points of one row


@drawing
def errors_next_to_paper(palette: Palette, results: Sequence[CaseResult]) -> Figure:
    """One row per case: its errors here on the left, and in the paper on the right."""
    canvas = Canvas(figsize=(7.2, 0.9 + 0.42 * len(results)))
    low, high = 0.6 / canvas.get_figheight(), 1 - 0.34 / canvas.get_figheight()
    here, paper = (axes_at(canvas, [left, low, 0.34, high - low]) for left in (0.27, 0.645))
    places = [*range(len(results), 0, -1)]
    first = next(each for each in results if each.outputs)  # the legend needs a case with points
    for name, colour, shift in (("single head", palette.second, SHIFT), ("ensemble", palette.first, -SHIFT)):
        for place, each in zip(places, results, strict=True):
            errors = [*(each.single if name == "single head" else each.ensemble).values()]
            in_paper = each.case.paper_single if name == "single head" else each.case.paper
            if errors:
                _draw_seeds(here, errors, place + shift, colour, name if each is first else None)
            if in_paper is not None:
                paper.plot(in_paper, place + shift, "o", color=colour, markersize=5)
    for axes, title in ((here, "here"), (paper, "paper")):
        axes.set_ylim(0.4, len(results) + 0.6)
        axes.set_yticks(places, [each.case.title for each in results] if axes is here else [])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"test error, {title} (%)")
        axes.margins(x=0.12)
    legend_above(here)
    summary = "; ".join(
        f"{each.case.title}: {statistics.mean(each.ensemble.values()):.2f}" for each in results if each.outputs
    )
    caption = (
        "Points are means over seeds; faint rings are single seeds. The two axes have different scales: compare "
        "the order of the rows, not the numbers."
    )
    return Figure(canvas, palette, f"Test errors of the ensemble in percent. {summary}.", caption)


def _draw_seeds(axes: Axes, errors: Sequence[float], place: float, colour: str, label: str | None) -> None:
    axes.plot(errors, [place] * len(errors), "o", color=colour, markersize=5, fillstyle="none", alpha=0.45)
    axes.plot(statistics.mean(errors), place, "o", color=colour, markersize=5, label=label)


@drawing
def errors_and_parameters(palette: Palette, results: Sequence[CaseResult], what: str) -> Figure:
    """Error as lines and parameters as bars, as in the paper's figure."""
    canvas = Canvas(figsize=(5.4, 3.2))
    axes = axes_at(canvas, [0.11, 0.15, 0.78, 0.72])
    parameters = axes.twinx()
    parameters.spines["right"].set_visible(True)
    places = range(len(results))
    parameters.bar(places, [each.parameters / 1e6 for each in results], 0.55, color=palette.faint, alpha=0.22)
    parameters.set_ylabel("parameters (millions, bars)")
    parameters.set_ylim(0, 1.6 * max(each.parameters / 1e6 for each in results))
    axes.set_zorder(parameters.get_zorder() + 1)
    axes.patch.set_visible(False)
    for name, colour, line in (("single head", palette.second, "--"), ("ensemble", palette.first, "-")):
        errors = {
            place: [*(each.single if name == "single head" else each.ensemble).values()]
            for place, each in enumerate(results)
            if each.outputs
        }
        means = [statistics.mean(some) for some in errors.values()]
        deviations = [statistics.stdev(some) if len(some) > 1 else 0.0 for some in errors.values()]
        axes.errorbar([*errors], means, deviations, fmt=f"o{line}", color=colour, markersize=4, capsize=3, label=name)
    axes.set_xticks(places, [each.case.title for each in results])
    axes.set_xlabel(what)
    axes.set_ylabel("test error (%)")
    legend_above(axes)
    summary = "; ".join(
        f"{each.case.title}: {statistics.mean(each.ensemble.values()):.2f} %" for each in results if each.outputs
    )
    caption = "Mean and standard deviation over seeds. The bars count the parameters of the whole network."
    return Figure(canvas, palette, f"Test error of the ensemble by {what}. {summary}.", caption)


@drawing
def reliability_diagrams(palette: Palette, diagrams: Mapping[str, Reliability], unit: Unit) -> Figure:
    """The paper's figure: reliability diagrams side by side, each with a title."""
    inches = 2.1
    canvas = Canvas(figsize=(0.65 + inches * len(diagrams), 3.9))
    share = inches / canvas.get_figwidth()
    for number, (title, reliability) in enumerate(diagrams.items()):
        left, width = 0.6 / canvas.get_figwidth() + number * share, 0.82 * share
        above, below = axes_at(canvas, [left, 0.43, width, 0.44]), axes_at(canvas, [left, 0.12, width, 0.25])
        draw_reliability(palette, above, below, reliability)
        below.set_ylim(0, 1)
        above.set_title(f"{title}\nECE {reliability.gap:.1f} %", fontsize=8.5, loc="left")
        for axes in (above, below):
            axes.set_xticks([0, 0.5, 1])
            if number:
                axes.set_yticklabels([])
        if number == 0:
            above.set_ylabel("accuracy")
            below.set_ylabel(f"fraction of {unit.many}")
    summary = "; ".join(f"{title}: ECE {reliability.gap:.2f} %" for title, reliability in diagrams.items())
    caption = (
        f"First seed only. Top: the accuracy of the {unit.many} in each confidence bin and, in orange, its gap to "
        "their mean confidence; on the diagonal, probabilities are calibrated. Bottom: the fraction of "
        f"{unit.many} in each bin, with the accuracy (solid) and the mean confidence (dashed)."
    )
    return Figure(canvas, palette, f"Reliability diagrams above histograms of confidence. {summary}.", caption)


@drawing
def times_next_to_paper(palette: Palette, ratios: Mapping[str, Mapping[str, tuple[float, float]]]) -> Figure:
    """For each network, the time per step relative to the original's as bars: here and in the paper."""
    inches = 3.2
    canvas = Canvas(figsize=(0.6 + inches * len(ratios), 2.7))
    share, most = inches / canvas.get_figwidth(), max(max(pair) for each in ratios.values() for pair in each.values())
    for number, (network, structures) in enumerate(ratios.items()):
        axes = axes_at(canvas, [0.55 / canvas.get_figwidth() + number * share, 0.13, 0.9 * share, 0.66])
        for shift, colour, who in ((-0.2, palette.first, 0), (0.2, palette.faint, 1)):
            heights = [pair[who] for pair in structures.values()]
            bars = axes.bar(
                [place + shift for place in range(len(structures))],
                heights,
                0.36,
                color=colour,
                label=("here", "paper")[who],
            )
            axes.bar_label(bars, [f"{height:.2f}" for height in heights], fontsize=8)
        axes.set_xticks(range(len(structures)), [*structures])
        axes.grid(False, axis="x")
        axes.set_title(network, fontsize=9, loc="right")
        axes.set_ylim(0, 1.12 * most)
        if number == 0:
            axes.set_ylabel("time per step / original's")
        legend_above(axes)
    summary = "; ".join(
        f"{network}, {name}: {here:.2f} here, {paper:.2f} in the paper"
        for network, structures in ratios.items()
        for name, (here, paper) in structures.items()
    )
    caption = "The time of a training step, relative to that of the original network."
    return Figure(canvas, palette, f"Time per step relative to the original's. {summary}.", caption)
