"""`cotrain fit`."""

from pathlib import Path
from typing import Annotated, Literal

from cotrain.cli.options import Flag, Options, absolute_if_file
from cotrain.cli.result_table import result_table
from cotrain.data.split import read_split
from cotrain.device import Precision
from cotrain.fitting.fit import fit
from cotrain.progress import terminal
from cotrain.runs.run import Run
from cotrain.training.distributed import own_rank

console = terminal()


def fit_command(
    data: str | None = None,
    *,
    out: Path | None = None,
    resume: Annotated[bool, Flag] = False,
    no_baseline: Annotated[bool, Flag] = False,
    method: str | None = None,
    steps: int | None = None,
    precision: Precision | None = None,
    compile: Annotated[bool, Flag] = False,
    track: Literal["none", "tensorboard"] | None = None,
    class_shares: str | None = None,
    trust_labels: float | None = None,
    split: Path | None = None,
    trust_code: Annotated[bool, Flag] = False,
    options: Options | None = None,
) -> None:
    """Train on DATA and save everything in a run folder.

    Parameters
    ----------
    data
        A folder of images, a .npz file, digits, or the name or files of one of the paper's datasets.
        With --resume it can be left out.
    out
        The run folder; by default a new one in runs/.
    resume
        Resume the run in --out from its newest checkpoint.
    no_baseline
        Do not train the labelled-only baseline that the result is compared with.
    method
        The training method, such as mhct or fixmatch.
    steps
        optim.steps: number of training steps.
    precision
        run.precision: data type of the convolutions.
    compile
        run.compile: compile the network with torch.compile.
    track
        run.track: also send the log and the figures to tensorboard, which needs the extra of that name.
    class_shares
        robust.class_shares: the share of each class among the unlabelled images. `equal`, `estimate`, or a table with
        the columns class and share. By default nothing is assumed.
    trust_labels
        robust.trust_labels: the share of the labels that you expect to be right, such as 0.9. Disputed ones count less.
    split
        A file written by `cotrain data split`, instead of a split drawn from the settings and the seed.
    trust_code
        With --resume: import the network that the settings of the run name. Its code runs.
    """
    options = options or Options()
    short = {
        "method": method,
        "optim.steps": steps,
        "run.baseline": False if no_baseline else None,
        "run.precision": precision,
        "run.compile": compile or None,
        "run.track": track,
        "robust.class_shares": class_shares and absolute_if_file(class_shares),
        "robust.trust_labels": trust_labels,
    }
    fitted = fit(
        data,
        out=out,
        config=options.config,
        settings={**options.settings, **{key: value for key, value in short.items() if value is not None}},
        preset=options.preset,
        split=read_split(split) if split is not None else None,
        resume=resume,
        memory=options.memory,
        trust_code=trust_code,
        console=console,
    )
    if own_rank() == 0:
        console.print(result_table(Run.open(fitted.folder), fitted.result))
