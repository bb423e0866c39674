"""A figure of comparisons at equal time: error against training time, one panel per comparison, one line per method.

    python -m benchmarks.over_time --rows over-time.jsonl --out over-time.png "SVHN, 1,000 labels=runs/svhn-1000"

Every run logs its error on 1,000 unlabelled images, whose labels only the evaluation knows. Thin lines are runs, thick
ones the mean of a method's seeds. Time is that of the plan: on a busy machine, some runs take longer than others. The
table has the errors on the test images after the last step.

The runs are added to the file of rows, which is enough to draw them again, or beside later ones.
"""

import argparse
import json
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.photographs import markdown, shown_difference, shown_error
from cotrain.runs.log import read_log
from cotrain.runs.result import Result

REFERENCES = ("supervised", "mhct")  # the others are compared with these
ACROSS = 3  # panels
NAMES = {
    "supervised": "labelled-only",
    "mhct": "co-training",
    "mhct_routed": "routed co-training",
    "fixmatch": "FixMatch",
}
COLOURS = {"supervised": "#555555", "mhct": "#1f6fb2", "mhct_routed": "#2a8a4a", "fixmatch": "#c4620a"}


@dataclass(frozen=True)
class Row:
    """One run."""

    comparison: str
    method: str
    seed: int
    steps: int
    minutes: float  # planned
    seconds: float  # taken
    test_error: float
    curve: Sequence[tuple[int, float]]  # step, error on unlabelled images; empty: not kept, and not drawn

    @property
    def key(self) -> tuple[str, str, int]:
        return self.comparison, self.method, self.seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparisons", nargs="*", help="TITLE=FOLDER")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    found = {row.key: row for row in rows_in(asked.rows)}
    for comparison in asked.comparisons:
        title, _, folder = comparison.rpartition("=")
        found |= {row.key: row for row in finished(title, Path(folder))}
    asked.rows.write_text("".join(json.dumps(asdict(row)) + "\n" for row in found.values()))
    draw(found.values()).savefig(asked.out, dpi=110)
    for title in titles(found.values()):
        print(f"\n**{title}**\n\n{table([row for row in found.values() if row.comparison == title])}")


def rows_in(path: Path) -> Iterator[Row]:
    if path.exists():
        yield from (Row(**json.loads(line)) for line in path.read_text().splitlines())


def finished(title: str, comparison: Path) -> Iterator[Row]:
    budget = json.loads((comparison / "plan.json").read_text())["budget"]
    for path in sorted(comparison.glob("*/seed-*/result.json")):
        result, log = Result.read(path), read_log(path.with_name("log.jsonl"))
        curve = [(int(row["step"]), row["unlabelled_error"]) for row in log if "unlabelled_error" in row]
        training = result.training
        facts = (training.seed, training.steps, budget / 60, training.seconds, result.test.error)
        yield Row(title, training.method, *facts, curve)


def titles(rows: Collection[Row]) -> list[str]:
    return list(dict.fromkeys(row.comparison for row in rows))


def by_method(rows: Collection[Row]) -> Mapping[str, list[Row]]:
    found = {name: [row for row in rows if row.method == name] for name in NAMES}
    return {name: each for name, each in found.items() if each}


def draw(rows: Collection[Row]) -> Figure:
    panels = titles(rows)
    columns = min(ACROSS, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 4.2 * columns, 3.8 * lines), layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False)
    for axes in places.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, title in zip(places.flat, panels, strict=False):
        methods = by_method([row for row in rows if row.comparison == title and row.curve])
        for name, runs in methods.items():
            draw_method(axes, NAMES[name], runs, COLOURS[name])
        highest = max(row.curve[-1][1] for runs in methods.values() for row in runs)
        axes.set(title=title, xlabel="minutes of training", ylim=(0, 2 * highest))
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small", loc="upper right")
    for axes in places[:, 0]:
        axes.set_ylabel("error on unlabelled images, %")
    return figure


def draw_method(axes: Axes, name: str, runs: Sequence[Row], colour: str) -> None:
    curves = []
    for row in runs:
        steps, errors = np.array(row.curve).T
        curves.append((steps / row.steps * row.minutes, errors))
        axes.plot(*curves[-1], color=colour, linewidth=0.7, alpha=0.5)
    evaluations = min(len(errors) for _, errors in curves)
    mean = np.mean([[minutes[:evaluations], errors[:evaluations]] for minutes, errors in curves], axis=0)
    axes.plot(*mean, color=colour, linewidth=2, label=f"{name} (n = {len(curves)})")


def table(rows: Collection[Row]) -> str:
    methods = by_method(rows)
    errors = {name: {row.seed: row.test_error for row in runs} for name, runs in methods.items()}
    body = [
        [
            NAMES[name],
            str(runs[0].steps),
            f"{statistics.mean(row.seconds for row in runs) / 60:.1f}",
            shown_error(errors[name]),
            *(shown_difference(errors.get(other, {}), errors[name]) if name != other else "" for other in REFERENCES),
        ]
        for name, runs in methods.items()
    ]
    differences = [f"difference to {NAMES[name]}, points" for name in REFERENCES]
    return markdown(["method", "steps", "minutes", "test error, %", *differences], body)


if __name__ == "__main__":
    main()
