"""`cotrain study`."""

from pathlib import Path
from typing import Literal

from rich.table import Table

from cotrain.cli.options import Options
from cotrain.progress import terminal


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
    """Run one of the paper's studies, and write a table and a figure next to the paper's numbers.

    Run the same command again to resume. You can also start it several times: each process takes the next run that no
    other process is training.

    Parameters
    ----------
    which
        The name of a study; see the list below.
    data
        As in fit; by default digits at the scale minutes, and the paper's dataset otherwise. The study cost takes none.
    scale
        minutes: a short training of a small network; with a pretrained one, the recipe's steps. hours: a whole small
        recipe. published: the paper's network, batches and steps, which take days on a GPU.
    seeds
        Number of seeds; each draws its own split. By default 3, or 5 at the scale published.
    steps
        optim.steps: number of training steps.
    out
        The folder for the study; by default runs/study-WHICH-DATA-SCALE.
    """
    from cotrain.comparison.studies import study  # slow: imports matplotlib

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
        console=terminal(),
    )


def studies_table() -> Table:
    from cotrain.comparison.studies import STUDIES  # slow: imports matplotlib

    table = Table("study", "what it measures", title="Studies", title_justify="left")
    for name, each in STUDIES.items():
        table.add_row(name, each.about)
    return table
