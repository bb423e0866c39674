"""Figures of the page as inline SVG. Their colours are the page's own (CSS variables), so they follow light and dark.

No name from the data is drawn here: such names are text of the page, which escapes them.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cotrain.calibrate import Reliability
from cotrain.selective import RiskCoverage

# What is drawn in one of these colours gets the page's variable of that name.
COLOURS = {
    "ink": "#010101",
    "faint": "#020202",
    "grid": "#030303",
    "first": "#040404",
    "second": "#050505",
    "third": "#060606",
    "fourth": "#070707",
}
SERIES = ("first", "second", "third", "fourth")
LINES = ("-", "--", ":", "-.")
HEAT = (0.24, 0.52, 0.86)  # a picture inside a figure cannot follow the page; this blue is seen on white and on black
POINTS = 400  # of a curve; the page stays small
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.edgecolor": COLOURS["faint"],
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": COLOURS["faint"],
    "ytick.color": COLOURS["faint"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.2,
}


@dataclass(frozen=True)
class Figure:
    svg: str
    caption: str  # how to read it


Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # name -> steps and values


@mpl.rc_context(STYLE)
def curves(series: Series, unit: str, caption: str, *, share: bool = False) -> Figure:
    """Lines over the steps of training. A `share` has an axis from 0 to 1."""
    canvas = Canvas(figsize=(4.2, 2.6))
    columns = 3 if sum(map(len, series)) < 34 else 2
    axes = _axes(canvas, [0.15, 0.18, 0.81, 0.75 - 0.075 * -(-len(series) // columns)])
    for number, (name, (steps, values)) in enumerate(series.items()):
        x, y = _thinned(steps), _thinned(values)
        marker = "o" if len(x) == 1 else None
        colour, line = COLOURS[SERIES[number % 4]], LINES[number // 4 % 4]
        axes.plot(x, y, line, color=colour, linewidth=1.5, marker=marker, markersize=4, label=name)
    drawn = np.concatenate([np.asarray(values, np.float64) for _, values in series.values()])
    top = 1.0 if share else float(drawn.max())
    axes.set_ylim(min(0.0, 1.08 * float(drawn.min())), 1.08 * top if top > 0 else 1.0)
    axes.set_xlim(0, 1.02 * _last_step(series))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    _legend(axes, columns)
    ends = "; ".join(f"{name} ends at {values[-1]:.3g}" for name, (_, values) in series.items())
    return _finished(canvas, f"Line chart of {unit} over {_last_step(series):,} steps. {ends}.", caption)


@mpl.rc_context(STYLE)
def reliability_diagram(found: Reliability, accuracy: float, confidence: float, caption: str) -> Figure:
    """The paper's figure: accuracy by confidence above the histogram of confidence; accuracy and confidence percent."""
    middles, width = (found.edges[:-1] + found.edges[1:]) / 2, np.diff(found.edges) * 0.94
    some = found.images > 0
    canvas = Canvas(figsize=(3.4, 4.2))
    above, below = _axes(canvas, [0.16, 0.42, 0.8, 0.51]), _axes(canvas, [0.16, 0.11, 0.8, 0.25])
    right, expected, places = found.accuracy[some], found.confidence[some], middles[some]
    lower, between = np.minimum(right, expected), abs(right - expected)
    above.bar(places, lower, width[some], color=COLOURS["first"], alpha=0.75)
    above.bar(places, between, width[some], bottom=lower, color=COLOURS["second"], alpha=0.45, label="gap")
    above.hlines(
        right, places - width[some] / 2, places + width[some] / 2, COLOURS["ink"], linewidth=1.8, label="accuracy"
    )
    above.plot([0, 1], [0, 1], "--", color=COLOURS["faint"], linewidth=1)
    above.set_ylabel("accuracy")
    above.set_ylim(0, 1.0)
    _legend(above)
    share = found.images / max(found.images.sum(), 1)
    below.bar(middles, share, width, color=COLOURS["faint"], alpha=0.55)
    below.axvline(accuracy / 100, color=COLOURS["first"], linewidth=1.6)
    below.axvline(confidence / 100, color=COLOURS["second"], linewidth=1.6, linestyle="--")
    below.set_ylim(0, max(0.05, 1.08 * float(share.max())))
    below.set_ylabel("share of images")
    below.set_xlabel("confidence")
    below.yaxis.set_major_locator(MaxNLocator(3))
    for axes in (above, below):
        axes.set_xlim(0, 1)
        axes.set_xticks(np.linspace(0, 1, 6))
    above.set_xticklabels([])
    alt = (
        f"Reliability diagram over a histogram of confidence, {int(found.images.sum()):,} images. "
        f"Accuracy {accuracy:.1f} %, mean confidence {confidence:.1f} %, expected calibration error {found.gap:.1f} %."
    )
    return _finished(canvas, alt, caption)


@mpl.rc_context(STYLE)
def risk_coverage_curve(curves_by_name: Mapping[str, RiskCoverage], caption: str) -> Figure:
    canvas = Canvas(figsize=(4.2, 2.8))
    axes = _axes(canvas, [0.15, 0.17, 0.81, 0.7])
    for number, (name, curve) in enumerate(curves_by_name.items()):
        places = np.unique(np.linspace(0, len(curve.risk) - 1, POINTS).round().astype(int))
        x, y = 100 * curve.coverage[places], 100 * curve.risk[places]
        colour, marker = COLOURS[SERIES[number % 4]], "o" if len(x) == 1 else None
        axes.plot(x, y, LINES[number % 4], color=colour, linewidth=1.6, marker=marker, markersize=4, label=name)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, max(1.0, 1.05 * axes.get_ylim()[1]))
    axes.set_xlabel("images answered, surest first (%)")
    axes.set_ylabel("error among them (%)")
    _legend(axes)
    areas = "; ".join(
        f"{name}: {100 * curve.risk[-1]:.2f} % when all are answered, area {100 * curve.area:.2f} %"
        for name, curve in curves_by_name.items()
    )
    return _finished(canvas, f"Line chart of the error among the images that are answered. {areas}.", caption)


@mpl.rc_context(STYLE)
def heat_map(shares: NDArray[np.float64], caption: str) -> Figure:
    """(C, C) shares between 0 and 1; nan is left empty."""
    canvas = Canvas(figsize=(4.6, 4.4))
    axes = canvas.add_axes((0.12, 0.11, 0.86, 0.86))
    picture = np.empty((*shares.shape, 4))
    picture[..., :3] = HEAT
    picture[..., 3] = np.sqrt(np.nan_to_num(shares))  # rare mistakes are seen too
    axes.imshow(picture, interpolation="none")  # a pixel a cell, however many
    axes.set_xlabel("class that was said (number)")
    axes.set_ylabel("label (number)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    for spine in axes.spines.values():
        spine.set_visible(True)
    known = shares.diagonal()[~np.isnan(shares.diagonal())]
    alt = f"Confusion matrix of {len(shares)} classes. On average {known.mean():.0%} of a class is on the diagonal."
    return _finished(canvas, alt, caption)


def _finished(canvas: Canvas, alt: str, caption: str) -> Figure:
    content = io.StringIO()
    canvas.savefig(content, format="svg", transparent=True)
    return Figure(_for_page(content.getvalue(), alt), caption)


def _axes(canvas: Canvas, place: list[float]) -> Axes:
    axes = canvas.add_axes((place[0], place[1], place[2], place[3]))
    axes.grid(True)
    return axes


def _legend(axes: Axes, columns: int = 2) -> None:
    """Above the axes, where no line can be."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, columnspacing=1.2, borderaxespad=0.1)


def _for_page(text: str, alt: str) -> str:
    """Nothing that a page has already or must not have: headers, name spaces, metadata, sizes, fonts, unused ids."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = text.replace("xlink:href", "href")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    text = re.sub(r"<svg[^>]*>", f'<svg {box[0]} role="img" aria-label="{escape(alt)}">', text, count=1)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return re.sub(r"\n\s*", "\n", text)


def _thinned(values: Sequence[float]) -> NDArray[np.float64]:
    """At most so many, each the mean of its neighbours."""
    parts = np.array_split(np.asarray(values, np.float64), min(POINTS, len(values)))
    return np.array([part.mean() for part in parts])


def _last_step(series: Series) -> int:
    return int(max(steps[-1] for steps, _ in series.values()))
