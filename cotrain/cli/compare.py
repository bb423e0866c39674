"""`cotrain compare`."""

from pathlib import Path
from typing import Annotated

from cotrain.cli.options import Flag, Options
from cotrain.comparison.budget import Equal
from cotrain.comparison.compare import compare
from cotrain.progress import terminal


def compare_command(
    data: str,
    *,
    methods: str = "all",
    seeds: int = 3,
    equal: Equal = "steps",
    minutes: float | None = None,
    same_optimiser: Annotated[bool, Flag] = False,
    steps: int | None = None,
    out: Path | None = None,
    options: Options | None = None,
) -> None:
    """Train several methods under the same protocol and compare them in one table.

    Run the same command again to resume. You can also start it several times: each process takes the next run that no
    other process is training.

    Parameters
    ----------
    data
        As in fit.
    methods
        all, or names separated by commas; `mhct:heads=5` is a method with a setting changed. The
        others are compared with the first.
    seeds
        Number of seeds. Each seed draws its own split, which all methods share.
    equal
        What all runs have in common: the number of steps, or (about) the training time.
    minutes
        With equal time, minutes per run; by default as long as the first method takes for its steps.
    same_optimiser
        Give every method the recipe's optimiser settings (optim.per_method false). By default, the published recipes
        give each method the settings of its own paper; the table shows them.
    steps
        optim.steps: number of training steps.
    out
        The folder for the comparison; by default runs/compare-DATA.
    """
    options = options or Options()
    compare(
        data,
        out=out,
        methods=methods,
        seeds=seeds,
        equal=equal,
        minutes=minutes,
        same_optimiser=same_optimiser,
        config=options.config,
        settings={**options.settings, **({"optim.steps": steps} if steps is not None else {})},
        preset=options.preset,
        memory=options.memory,
        console=terminal(),
    )
