"""Figures: SVG inside the report, with the page's light or dark colours; PNG elsewhere.

Figures never contain names from the data. Such names appear only in the text of the page, which escapes them.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, wraps
from html import escape
from typing import IO, Any, Concatenate, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cotrain.evaluation.calibration import Reliability
from cotrain.evaluation.selective import RiskCoverage
from cotrain.types import Unit


@dataclass(frozen=True)
class Palette:
    ink: str
    faint: str
    grid: str
    first: str
    second: str
    third: str
    fourth: str

    @property
    def series(self) -> tuple[str, str, str, str]:
        return self.first, self.second, self.third, self.fourth


# Placeholder colours: the page replaces each with its CSS variable of that name.
ON_PAGE = Palette("#010101", "#020202", "#030303", "#040404", "#050505", "#060606", "#070707")
PRINTED = Palette("#1b1f24", "#5f6874", "#dfe3e8", "#1f6fb2", "#c4620a", "#2b8a57", "#8a4fb0")  # the page's light mode
LINES = ("-", "--", ":", "-.")
HEAT = (0.24, 0.52, 0.86)  # a bitmap cannot follow the page's colours; this blue is visible on white and on black
POINTS = 400  # per curve, to keep the page small
DPI = 150
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.2,
}
INKED = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
FAINT = ("axes.edgecolor", "xtick.color", "ytick.color")
P = ParamSpec("P")


def style(palette: Palette) -> dict[Any, Any]:
    inked, faint = dict.fromkeys(INKED, palette.ink), dict.fromkeys(FAINT, palette.faint)
    return {**STYLE, **inked, **faint, "grid.color": palette.grid}


@contextmanager
def styled(palette: Palette) -> Iterator[None]:
    """Our style, whatever a matplotlibrc says: matplotlib also reads one in the current folder."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style(palette))
        yield


@dataclass(frozen=True)
class Figure:
    canvas: Canvas
    palette: Palette
    alt: str
    caption: str  # how to read it

    @cached_property
    def svg(self) -> str:
        """To embed in the report."""
        content = io.StringIO()
        self._save(content, "svg", transparent=True)
        return _for_page(content.getvalue(), self.alt)

    @cached_property
    def png(self) -> bytes:
        """For use elsewhere, on white."""
        content = io.BytesIO()
        self._save(content, "png", dpi=DPI, facecolor="white")
        return content.getvalue()

    def _save(self, content: IO[Any], kind: str, **how: Any) -> None:
        with styled(self.palette):  # some parts are drawn only when saving
            self.canvas.savefig(content, format=kind, **how)


def drawing(draw: Callable[Concatenate[Palette, P], Figure]) -> Callable[Concatenate[Palette, P], Figure]:
    """Decorator: draw in our style with the colours of the palette."""

    @wraps(draw)
    def drawn(palette: Palette, *args: P.args, **settings: P.kwargs) -> Figure:
        with styled(palette):
            return draw(palette, *args, **settings)

    return drawn


Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # name -> steps and values


@drawing
def curves(palette: Palette, series: Series, quantity: str, caption: str, *, share: bool = False) -> Figure:
    """Lines over training steps. With `share`, the axis runs from 0 to 1."""
    canvas = Canvas(figsize=(4.2, 2.6))
    columns = 3 if sum(map(len, series)) < 34 else 2
    axes = axes_at(canvas, [0.15, 0.18, 0.81, 0.75 - 0.075 * -(-len(series) // columns)])
    for number, (name, (steps, values)) in enumerate(series.items()):
        x, y = _thinned(steps), _thinned(values)
        marker = "o" if len(x) == 1 else None
        colour, line = palette.series[number % 4], LINES[number // 4 % 4]
        axes.plot(x, y, line, color=colour, linewidth=1.5, marker=marker, markersize=4, label=name)
    drawn = np.concatenate([np.asarray(values, np.float64) for _, values in series.values()])
    top = 1.0 if share else float(drawn.max())
    axes.set_ylim(min(0.0, 1.08 * float(drawn.min())), 1.08 * top if top > 0 else 1.0)
    axes.set_xlim(0, 1.02 * _last_step(series))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel(quantity)
    legend_above(axes, columns)
    ends = "; ".join(f"{name} ends at {values[-1]:.3g}" for name, (_, values) in series.items())
    return Figure(canvas, palette, f"Line chart of {quantity} over {_last_step(series):,} steps. {ends}.", caption)


@drawing
def reliability_diagram(palette: Palette, found: Reliability, unit: Unit, caption: str) -> Figure:
    """The paper's figure: accuracy by confidence, above a histogram of the confidence."""
    canvas = Canvas(figsize=(3.4, 4.2))
    above, below = axes_at(canvas, [0.19, 0.42, 0.77, 0.51]), axes_at(canvas, [0.19, 0.11, 0.77, 0.25])
    draw_reliability(palette, above, below, found)
    above.set_ylabel("accuracy")
    below.set_ylabel(f"share of {unit.many}")
    legend_above(above)
    alt = (
        f"Reliability diagram above a histogram of the confidence, {int(found.images.sum()):,} {unit.many}. "
        f"Accuracy {found.mean_accuracy:.1f} %, mean confidence {found.mean_confidence:.1f} %, "
        f"expected calibration error {found.gap:.1f} %."
    )
    return Figure(canvas, palette, alt, caption)


def draw_reliability(palette: Palette, above: Axes, below: Axes, found: Reliability) -> None:
    middles, width = (found.edges[:-1] + found.edges[1:]) / 2, np.diff(found.edges) * 0.94
    some = found.images > 0
    right, expected, places = found.accuracy[some], found.confidence[some], middles[some]
    lower, between = np.minimum(right, expected), abs(right - expected)
    above.bar(places, lower, width[some], color=palette.first, alpha=0.75)
    above.bar(places, between, width[some], bottom=lower, color=palette.second, alpha=0.45, label="gap")
    above.hlines(
        right, places - width[some] / 2, places + width[some] / 2, palette.ink, linewidth=1.8, label="accuracy"
    )
    above.plot([0, 1], [0, 1], "--", color=palette.faint, linewidth=1)
    above.set_ylim(0, 1.0)
    share = found.images / max(found.images.sum(), 1)
    below.bar(middles, share, width, color=palette.faint, alpha=0.55)
    below.axvline(found.mean_accuracy / 100, color=palette.first, linewidth=1.6)
    below.axvline(found.mean_confidence / 100, color=palette.second, linewidth=1.6, linestyle="--")
    below.set_ylim(0, max(0.05, 1.08 * float(share.max())))
    below.set_xlabel("confidence")
    below.yaxis.set_major_locator(MaxNLocator(3))
    for axes in (above, below):
        axes.set_xlim(0, 1)
        axes.set_xticks(np.linspace(0, 1, 6))
    above.set_xticklabels([])


@drawing
def risk_coverage_curve(
    palette: Palette, curves_by_name: Mapping[str, RiskCoverage], unit: Unit, caption: str
) -> Figure:
    canvas = Canvas(figsize=(4.2, 2.8))
    axes = axes_at(canvas, [0.15, 0.17, 0.81, 0.7])
    for number, (name, curve) in enumerate(curves_by_name.items()):
        places = np.unique(np.linspace(0, len(curve.risk) - 1, POINTS).round().astype(int))
        x, y = 100 * curve.coverage[places], 100 * curve.risk[places]
        colour, marker = palette.series[number % 4], "o" if len(x) == 1 else None
        axes.plot(x, y, LINES[number % 4], color=colour, linewidth=1.6, marker=marker, markersize=4, label=name)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, max(1.0, 1.05 * axes.get_ylim()[1]))
    axes.set_xlabel(f"{unit.many} answered, most confident first (%)")
    axes.set_ylabel("error among them (%)")
    legend_above(axes)
    areas = "; ".join(
        f"{name}: {100 * curve.risk[-1]:.2f} % if all {unit.many} are answered, area {100 * curve.area:.2f} %"
        for name, curve in curves_by_name.items()
    )
    return Figure(canvas, palette, f"Line chart of the error among the answered {unit.many}. {areas}.", caption)


@drawing
def heat_map(palette: Palette, shares: NDArray[np.float64], caption: str) -> Figure:
    """(C, C) shares between 0 and 1; NaN is left empty."""
    canvas = Canvas(figsize=(4.6, 4.4))
    axes = canvas.add_axes((0.12, 0.11, 0.86, 0.86))
    picture = np.empty((*shares.shape, 4))
    picture[..., :3] = HEAT
    picture[..., 3] = np.sqrt(np.nan_to_num(shares))  # so that rare mistakes are visible
    axes.imshow(picture, interpolation="none")  # one pixel per cell
    axes.set_xlabel("predicted class (number)")
    axes.set_ylabel("label (number)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    for spine in axes.spines.values():
        spine.set_visible(True)
    known = shares.diagonal()[~np.isnan(shares.diagonal())]
    alt = f"Confusion matrix of {len(shares)} classes. On average, {known.mean():.0%} of a class is on the diagonal."
    return Figure(canvas, palette, alt, caption)


def axes_at(canvas: Canvas, place: list[float]) -> Axes:
    axes = canvas.add_axes((place[0], place[1], place[2], place[3]))
    axes.grid(True)
    return axes


def legend_above(axes: Axes, columns: int = 2) -> None:
    """Above the axes, where it covers no line."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, columnspacing=1.2, borderaxespad=0.1)


def _for_page(text: str, alt: str) -> str:
    """Remove what a page already has or must not contain: headers, namespaces, metadata, sizes, fonts, unused ids."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = text.replace("xlink:href", "href")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    opening = f'<svg {box[0]} role="img" aria-label="{escape(alt)}">'
    text = re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for name, colour in asdict(ON_PAGE).items():
        text = text.replace(colour, f"var(--{name})")
    return re.sub(r"\n\s*", "\n", text)


def _thinned(values: Sequence[float]) -> NDArray[np.float64]:
    """At most POINTS values, each the mean of several neighbours."""
    parts = np.array_split(np.asarray(values, np.float64), min(POINTS, len(values)))
    return np.array([part.mean() for part in parts])


def _last_step(series: Series) -> int:
    return int(max(steps[-1] for steps, _ in series.values()))
