"""The command `cotrain study`."""

from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from cotrain.cli.options import Options


def study_command(
    which: str,
    data: str | None = None,
    *,
    scale: Literal["minutes", "hours", "published"] = "minutes",
    seeds: int | None = None,
    steps: int | None = None,
    out: Path | None = None,
    options: Options | None = None,
) -> None:
    """Do one of the paper's studies: a table and a figure beside the paper's numbers.

    The same command goes on where it was stopped. Started several times, each process takes the next run that nobody
    trains.

    Parameters
    ----------
    which
        A study's name, as listed below.
    data
        As for fit; by default the digits in minutes, and the paper's data otherwise. The cost has none.
    scale
        minutes: a short training of a small network. hours: the whole of a small recipe. published: the paper's
        network, batches and steps, for GPUs and days.
    seeds
        How many; each draws another split. By default 3, or 5 as published.
    steps
        optim.steps: how long to train.
    out
        The folder of the study; by default runs/study-WHICH-DATA-SCALE.
    """
    from cotrain.studies import study  # matplotlib takes a while

    options = options or Options()
    study(
        which,
        data,
        scale=scale,
        out=out,
        seeds=seeds,
        config=options.config,
        settings={**options.settings, **({"optim.steps": steps} if steps is not None else {})},
        preset=options.preset,
        memory=options.memory,
        console=Console(),
    )


def studies_table() -> Table:
    from cotrain.studies import STUDIES  # matplotlib takes a while

    table = Table("study", "what it shows", title="Studies", title_justify="left")
    for name, each in STUDIES.items():
        table.add_row(name, each.about)
    return table
