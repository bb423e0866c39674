"""`cotrain evaluate`."""

from pathlib import Path
from typing import Annotated

from cotrain.cli.options import Flag
from cotrain.cli.result_table import result_table
from cotrain.data import is_openable, open_data
from cotrain.fitting.evaluate import evaluate
from cotrain.inference.model import model_of
from cotrain.progress import terminal
from cotrain.runs.run import Run
from cotrain.training.experiment import Prepared
from cotrain.types import UserError

console = terminal()


def evaluate_command(
    run: Path,
    *,
    data: str | None = None,
    labels: Path | None = None,
    memory: float | None = None,
    trust_code: Annotated[bool, Flag] = False,
) -> None:
    """Recompute the test errors of a finished run.

    Parameters
    ----------
    run
        A run folder.
    data
        Where the data are now, if they moved. Data that differ from those of the run are refused.
    labels
        Where the label table is now, if it moved.
    memory
        As in fit.
    trust_code
        As in predict.
    """
    opened = Run.open(run).trusting_code() if trust_code else Run.open(run)
    settings = opened.config.data
    if labels is not None:
        settings = settings.model_copy(update={"labels_file": str(labels)})
    source = data or opened.split.source
    if source is None:
        raise UserError(
            f"{run} was trained on arrays; pass them as an .npz file with --data, or call "
            "cotrain.fitting.evaluate.evaluate"
        )
    if data is None and not is_openable(source):
        raise UserError(opened.data_missing)
    dataset = open_data(source, settings, memory=memory, console=console)
    prepared = Prepared(opened.config, dataset, console=console, augmented=False)
    dataset = prepared.with_bank(dataset)
    console.print(result_table(opened, evaluate(opened, dataset, model=model_of(opened, trunk=prepared.trunk))))
