"""The paper's studies: each trains or measures, and leaves a table and a figure beside the paper's numbers."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from cotrain.checkpoint import write_whole
from cotrain.comparing import Comparison, Length
from cotrain.config import Config
from cotrain.data import Dataset, open_data
from cotrain.figures import Figure
from cotrain.fitting import configured
from cotrain.progress import say
from cotrain.recipes import recipe_named
from cotrain.studies import cost
from cotrain.studies.ablation import Ablation
from cotrain.studies.calibration import CalibrationStudy
from cotrain.studies.case import Study, found_of, what_differs
from cotrain.studies.heads import Heads
from cotrain.studies.structure import Structure
from cotrain.table import Table
from cotrain.types import UserError

Scale = Literal["minutes", "hours", "published"]
STUDIES: dict[str, Study] = {each.name: each for each in (Ablation(), Heads(), Structure(), CalibrationStudy())}


@dataclass(frozen=True)
class Size:
    """Of the runs of a study."""

    steps: int | None  # none: the recipe's
    seeds: int


SIZES: dict[Scale, Size] = {"minutes": Size(250, 3), "hours": Size(None, 3), "published": Size(None, 5)}


def study(
    which: str,
    data: str | Path | Dataset | None = None,
    *,
    scale: Scale = "minutes",
    out: str | Path | None = None,
    seeds: int | None = None,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str = "paper",
    memory: float | None = None,
    console: Console | None = None,
) -> Table:
    """Do one of the paper's studies in the folder `out`; what is done there stays.

    Without `data` it is of the digits in minutes, and of the paper's data at other scales.
    """
    console = console or Console(quiet=True)
    if which == "cost":
        if data is not None or seeds is not None or config is not None:
            raise UserError("study cost measures steps of made-up images: it takes no data, seeds or recipe")
        return _cost(scale, Path(out or Path("runs") / f"study-cost-{scale}"), settings or {}, preset, console)
    if which not in STUDIES:
        raise UserError(f"there is no study {which!r}; there are: {', '.join([*STUDIES, 'cost'])}")
    return _trained(STUDIES[which], data, scale, out, seeds, config, settings or {}, preset, memory, console)


def _trained(
    wanted: Study,
    data: str | Path | Dataset | None,
    scale: Scale,
    out: str | Path | None,
    seeds: int | None,
    config: Config | None,
    settings: Mapping[str, Any],
    preset: str,
    memory: float | None,
    console: Console,
) -> Table:
    paper, size = recipe_named(wanted.recipe), SIZES[scale]
    changes = {**wanted.settings, **({"optim.steps": size.steps} if size.steps else {}), **settings}
    if data is None and scale == "minutes":
        data = "digits"
    elif data is None:
        data, changes = wanted.data, {"data.labels": paper.data.labels, **changes}
    if config is None and scale == "published":
        config = paper
    if not isinstance(data, Dataset):
        of_data = {key: value for key, value in changes.items() if key.startswith("data.")}
        data = open_data(data, (config or Config()).changed(of_data).data, memory=memory, console=console)
    base = configured(data, config, preset, changes)
    cases = wanted.cases(base)
    comparison = Comparison.of(
        data,
        Path(out or Path("runs") / f"study-{wanted.name}-{data.name}-{scale}"),
        [contender for case in cases for contender in case.contenders],
        seeds=size.seeds if seeds is None else seeds,
        config=base,
        command=f"cotrain study {wanted.name}",
    )
    if not comparison.split(comparison.seeds[0]).test:
        raise UserError(f"{data.name} has no labelled test images, and none are set aside; a study needs some")
    heading = (
        f"{wanted.about}; {data.name}: {comparison.images}; {base.model.backbone}; {base.optim.steps:,} steps; "
        f"{comparison.over_seeds}"
    )
    difference = what_differs(wanted, data, base)

    def write(plan: Mapping[str, Length]) -> Table | None:
        found = [found_of(case, comparison, plan) for case in cases]
        if not any(each.outputs for each in found):
            return None
        table = wanted.table(found)
        _write(comparison.folder, table, wanted.figure(found), wanted.name, heading, difference)
        return table

    plan, failed = comparison.train(console, write)
    table = write(plan)
    if table is not None:
        _say(console, comparison.folder, table, heading, difference)
    if failed or table is None:
        raise UserError(f"{len(failed)} runs failed; {failed[0]}; the same command tries again")
    return table


def _cost(scale: Scale, folder: Path, settings: Mapping[str, Any], preset: str, console: Console) -> Table:
    measuring = cost.Cost(folder, cost.EFFORTS[scale], preset, settings)
    say(console, f"{measuring.caption} -> {folder}")
    seconds = measuring.measure(console)
    table, heading = cost.table(measuring, seconds), f"parameters and time of a step; {measuring.caption}"
    _write(folder, table, cost.figure(seconds), "cost", heading, measuring.difference)
    _say(console, folder, table, heading, measuring.difference)
    return table


def _write(folder: Path, table: Table, figure: Figure, name: str, heading: str, difference: str) -> None:
    table.write(folder, "table")
    write_whole(folder / "figure.png", figure.png)
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    parts = [f"# {name}", f"{heading}.", f"{difference[0].upper()}{difference[1:]}.", table.markdown.rstrip()]
    parts += [f"![{figure.alt}](figure.png)", figure.caption, f"    {command}"]
    write_whole(folder / "study.md", ("\n\n".join(parts) + "\n").encode())


def _say(console: Console, folder: Path, table: Table, heading: str, difference: str) -> None:
    say(console, f"\n{heading}\n\n{table.text}\n{difference}\n")
    say(console, f"also as {folder / 'table'}.txt, .csv, .md and .tex, and with {folder / 'figure.png'} in study.md")
