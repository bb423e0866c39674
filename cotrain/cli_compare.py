"""The command `cotrain compare`."""

from pathlib import Path

from rich.console import Console

from cotrain.compare import Comparison, Equal
from cotrain.data import open_data
from cotrain.options import Options
from cotrain.progress import say
from cotrain.types import UserError


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
        all, or names with commas between them; `mhct:strong_views=routed` is a method with a setting changed. The
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
    options, console = options or Options(), Console()
    dataset = open_data(data, options.data_settings, memory=options.memory, console=console)
    comparison = Comparison.of(
        dataset,
        out or Path("runs") / f"compare-{dataset.name}",
        methods,
        seeds=seeds,
        equal=equal,
        minutes=minutes,
        config=options.config,
        preset=options.preset,
        settings={**options.settings, **({"optim.steps": steps} if steps is not None else {})},
    )
    plan, failed = comparison.train(console)
    table = comparison.table(plan)
    table.write(comparison.folder, "table")
    say(console, f"\n{comparison.caption}\n")
    say(console, table.text)
    say(console, f"also as {comparison.folder / 'table'}.txt, .csv, .md and .tex")
    if failed:
        raise UserError(f"{len(failed)} runs failed; {failed[0]}; the same command tries again")
