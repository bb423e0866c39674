"""How fast a recipe trains on this machine, and which settings would make it faster: `python -m benchmarks.step`."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import App, Parameter, validators

from benchmarks.step.table import ROUTED, Bench, Row
from cotrain.cli.options import Changes, Flag, parse_changes
from cotrain.config.recipes import RECIPES, recipe_named
from cotrain.device import pick_device, pick_precision
from cotrain.fitting.messages import network
from cotrain.progress import clock, counted, say, terminal
from cotrain.storage.writing import write_json
from cotrain.types import UserError

app = App(name="benchmarks.step")
FASTER = 1.05  # a smaller gain may be noise


@app.default
def bench(
    recipe: str = "small32",
    *,
    size: str = "32",
    classes: Annotated[int | None, Parameter(validator=validators.Number(gte=2))] = None,
    turns: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 5,
    compile: Annotated[bool, Flag] = False,
    out: Path | None = None,
    changes: Changes = (),
) -> None:
    """Time a recipe's training step on this machine: against its lower bound, the released code, and other settings.

    Parameters
    ----------
    recipe
        A recipe's name.
    size
        Size of the made-up images: one side, or HEIGHTxWIDTH.
    classes
        Number of classes; by default those of the recipe's dataset.
    turns
        Number of turns that the two sides of a comparison take; the table shows minimum and median times.
    compile
        Also try torch.compile, which takes minutes.
    out
        Write the table to this new JSON file.
    changes
        KEY=VALUE, as in fit.
    """
    if out is not None and out.exists():
        raise UserError(f"{out} already exists; choose another --out")
    config, known = recipe_named(recipe).changed(parse_changes(changes)), RECIPES[recipe]
    side = config.changed({"data.size": size}).data.size
    if side is None:
        raise UserError("this needs a --size, such as 32 or 48x64")
    height, width = map(int, side.split("x"))
    steps = Bench(config, (height, width, known.channels), classes or known.classes, turns)
    console = terminal()
    device = pick_device(config.run.device)
    precision = str(pick_precision(config.run.precision, device)).removeprefix("torch.")
    say(
        console,
        f"{network(config)}, {config.optim.labelled} labelled and "
        f"{config.unlabelled} unlabelled {height}x{width} images per step; {precision} on {device}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}",
    )
    say(console, f"{'':46}{'ours ms':>9}{'other ms':>10}   other / ours (medians)  GB")
    comparisons = steps.comparisons(compile) + [partial(steps.views, kind) for kind in ("strong", "weak")]
    rows = []
    for compare in counted(comparisons, len(comparisons), "comparing", console):
        rows.append(compare())
        for line in shown(rows[-1]):
            say(console, line)
    for line in advice(steps, rows):
        say(console, line)
    if out is not None:
        write_json(out, [row.as_dict() for row in rows])


def shown(row: Row) -> Iterator[str]:
    ours, other = (f"{1000 * timing.least:,.4g}" for timing in (row.ours, row.others))
    ratio = f"{row.ratio:.2f} ({row.ratio_of_medians:.2f})"
    yield (
        f"{f'{row.what} : {row.other}':46}{ours:>9}{other:>10}   {ratio:22}  "
        f"{row.ours.memory:.1f} / {row.others.memory:.1f}"
    )
    if row.note:
        yield f"    {row.note}"


def advice(bench: Bench, rows: Sequence[Row]) -> Iterator[str]:
    """Recommended settings, and how long the recipe takes."""
    settings = [row for row in rows if row.other.startswith("run.")]
    better = [row for row in settings if max(row.ratio, row.ratio_of_medians) < 1 / FASTER]
    for row in sorted(better, key=lambda row: row.ratio):
        yield f"recommended: --{row.other.replace('=', ' ')} ({1 / row.ratio:.2f} times as fast)"
    if not better:
        yield f"recommended: the current settings; none of {len(settings)} others is clearly faster"
    for row in rows:
        if row.other == f"method={ROUTED}" and row.ratio < 1 / FASTER:
            yield (
                f"cheaper: --method {ROUTED} takes 1/{1 / row.ratio:.1f} of the time; "
                "docs/results/routed.md says what it costs in accuracy"
            )
    seconds, steps = rows[0].ours.median, bench.config.optim.steps
    total = clock(steps * seconds)
    yield f"{steps:,} steps of {seconds:.3g} s take {total} here, not counting the labelled-only baseline"


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        sys.exit(f"benchmarks.step: {error}")
