"""The command `cotrain compare`."""

from pathlib import Path

from rich.console import Console

from cotrain.cli.options import Options
from cotrain.comparison.budget import Equal
from cotrain.comparison.compare import compare


def compare_command(
    data: str,
    *,
    methods: str = "all",
    seeds: int = 3,
    equal: Equal = "steps",
    minutes: float | None = None,
    steps: int | None = None,
    out: Path | None = None,
    options: Options | None = None,
) -> None:
    """Train several methods under the same protocol, and put them side by side.

    The same command goes on where it was stopped. Started several times, each process takes the next run that nobody
    trains.

    Parameters
    ----------
    data
        As for fit.
    methods
        all, or names with commas between them; `mhct:heads=5` is a method with a setting changed. The
        others are compared with the first.
    seeds
        How many; each draws another split, and all methods have the same splits.
    equal
        Every run has the same number of steps, or takes about the same time.
    minutes
        With equal time, how long each run is; by default as long as the steps of the first method.
    steps
        optim.steps: how long to train.
    out
        The folder of the comparison; by default runs/compare-DATA.
    """
    options = options or Options()
    compare(
        data,
        out=out,
        methods=methods,
        seeds=seeds,
        equal=equal,
        minutes=minutes,
        config=options.config,
        settings={**options.settings, **({"optim.steps": steps} if steps is not None else {})},
        preset=options.preset,
        memory=options.memory,
        console=Console(),
    )
