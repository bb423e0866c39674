"""`cotrain report`: the page of a run, or of several side by side."""

from pathlib import Path

from rich.console import Console

from cotrain.data import Dataset, is_openable, open_data
from cotrain.progress import say
from cotrain.run import Run
from cotrain.types import UserError

console = Console()


def report_command(*runs: Path, data: str | None = None, out: Path | None = None, memory: float | None = None) -> None:
    """Write a page about finished runs: one HTML file that needs nothing else.

    Of one run it is report.html in its folder, beside label_next.csv, the images to label next. Of several it is one
    page with the runs side by side.

    Parameters
    ----------
    runs
        Run folders.
    data
        Where the data lie now, if they moved. Without data the page has no images.
    out
        The page; by default report.html in the folder of the run, or here for several runs.
    memory
        As for fit.
    """
    from cotrain.report import PAGE, Subject, check_free, show, write_page, write_report  # matplotlib takes a while

    if not runs:
        raise UserError("report needs a run folder, or several")
    opened = [Run.open(folder) for folder in runs]
    path = out or (opened[0].folder / PAGE if len(opened) == 1 else Path(PAGE))
    check_free(path, opened)
    subjects = [Subject(run, *data_of(run, data, memory)) for run in opened]
    if len(subjects) == 1:
        write_report(opened[0], subjects[0].dataset, without=subjects[0].without, out=path)
    else:
        write_page(path, [show(subject) for subject in subjects])
    for subject in subjects:
        if subject.without:
            say(console, f"{subject.run.folder}: no images; {subject.without}")
    say(console, f"{len(opened)} {'run' if len(opened) == 1 else 'runs'} -> {path}")


def data_of(run: Run, data: str | None, memory: float | None) -> tuple[Dataset | None, str]:
    """The data of a run; where they are not named, not finding them is no error but a reason to say."""
    if data is not None:
        dataset = open_data(data, run.config.data, memory=memory, console=console)
        run.check_data(dataset)
        return dataset, ""
    source = run.split.source
    if source is None:
        return None, "The run was made from arrays, which are not kept; --data says where they are."
    if not is_openable(source):
        return None, f"The data are not at {source} any more; --data says where they are."
    try:
        dataset = open_data(source, run.config.data, memory=memory, console=console)
        run.check_data(dataset)
    except UserError as error:
        return None, f"The data cannot be used: {error}."
    return dataset, ""
