"""`cotrain report`: the page of one run, or of several runs side by side."""

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

from cotrain.cli.options import Flag
from cotrain.data import Dataset, DataSettings, is_openable, open_data
from cotrain.evaluation.calibration import BINS
from cotrain.progress import say, terminal
from cotrain.runs.run import Run
from cotrain.training.experiment import Prepared
from cotrain.types import UserError

console = terminal()


def report_command(
    *runs: Path,
    data: str | None = None,
    labels: Path | None = None,
    out: Path | None = None,
    bins: int = BINS,
    memory: float | None = None,
    trust_code: Annotated[bool, Flag] = False,
) -> None:
    """Write a page about finished runs: one self-contained HTML file.

    For one run, this is report.html in its folder; several runs share one page, side by side. label_next.csv in a run
    folder lists the images to label next, and README.md is its model card.

    Parameters
    ----------
    runs
        Run folders.
    data
        Where the data are now, if they have moved. Without data the page has no images.
    labels
        Where the label table is now, if it has moved.
    out
        The HTML file; by default report.html in the run folder, or in the current folder for several runs.
    bins
        Number of equal-width confidence bins for the expected calibration error and the reliability diagrams.
    memory
        As in fit.
    trust_code
        As in predict.
    """
    from cotrain.report.card import CARD, write_card
    from cotrain.report.page import PAGE, Subject, check_bins, check_free, show, write_page  # slow: imports matplotlib

    if not runs:
        raise UserError("report needs one or more run folders")
    check_bins(bins)
    opened = [Run.open(folder).trusting_code() if trust_code else Run.open(folder) for folder in runs]
    path = out or (opened[0].folder / PAGE if len(opened) == 1 else Path(PAGE))
    check_free(path, opened)
    open_once = lru_cache(maxsize=1)(partial(open_data, memory=memory, console=console))  # runs often share a dataset
    shown = [show(Subject(run, *data_of(run, open_once, data=data, labels=labels)), bins) for run in opened]
    write_page(path, shown)
    for run in opened:
        if write_card(run) is None:
            say(console, f"{run.folder / CARD} was not written by cotrain, or has been edited; it stays as it is")
    for one in shown:
        if one.without:
            say(console, f"{one.folder}: no {one.unit.many}; {one.without}")
    say(console, f"{len(opened)} {'run' if len(opened) == 1 else 'runs'} -> {path}")


def data_of(
    run: Run,
    open_once: Callable[[str, DataSettings], Dataset] = open_data,
    *,
    data: str | None = None,
    labels: Path | None = None,
) -> tuple[Dataset | None, str]:
    """The data of a run, or the reason why they are missing. That is an error only if the user said where they are."""
    settings, source = run.config.data, data or run.split.source
    if labels is not None:
        settings = settings.model_copy(update={"labels_file": str(labels)})
    if source is None:
        return None, "The run was trained on arrays, which are not saved; use --data to say where they are."
    if data is None and not is_openable(source):
        lost = f"{run.data_missing}." if "data" in run.packages else None
        return None, lost or f"The data are no longer at {source}; use --data to say where they are now."
    try:
        dataset = open_once(source, settings.for_reading)
        run.check_data(dataset)
        dataset = Prepared(run.config, dataset, console=console, augmented=False).with_bank(dataset)
    except UserError as error:
        if data is not None or labels is not None:
            raise
        return None, f"The data cannot be used: {error}."
    return dataset, ""
