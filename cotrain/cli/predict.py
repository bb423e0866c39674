"""`cotrain predict`."""

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from cotrain.cli.options import Flag
from cotrain.cli.streams import is_discarded
from cotrain.evaluation.selective import Threshold
from cotrain.evaluation.verdict import how_better
from cotrain.inference.job import Done, Job
from cotrain.inference.job_parts import check_out, partial_folder
from cotrain.inference.model import BETTER, Model, how_calibrated, kind_of_held_out
from cotrain.inference.predict import Choices, Prediction, prepared
from cotrain.inference.prediction_table import PARQUET, import_pyarrow
from cotrain.inference.shards import WHOLE, Shard
from cotrain.progress import terminal
from cotrain.runs.interrupt import Interrupted
from cotrain.runs.result import UNKNOWN
from cotrain.runs.run import Run
from cotrain.training.distributed import job_size, own_rank
from cotrain.types import Unit, UserError

Share = Annotated[float | None, Parameter(validator=validators.Number(gte=0, lte=1))]
Count = Annotated[int | None, Parameter(validator=validators.Number(gte=0))]
MOST_ARGUMENTS = 10  # with more images on the command line, the command to resume is not repeated


def predict_command(
    run: Path,
    /,
    *images: Path,
    out: Path | None = None,
    resume: Annotated[bool, Flag] = False,
    shard: str | None = None,
    workers: Count = None,
    defer_below: Share = None,
    target_error: Share = None,
    unknown_below: Share = None,
    follow_links: Annotated[bool, Flag] = False,
    use: str = BETTER,
    trust_code: Annotated[bool, Flag] = False,
) -> None:
    """Predict image files: path, class, probability, number of heads that agree, whether the image belongs to any class
    (a p-value), and the error if a file is unreadable.

    Memory does not grow with the number of images, apart from their paths. A job that was stopped or killed leaves
    OUT.partial, and --resume continues it. Under torchrun, each process predicts its own shard and writes its own
    file, such as preds-00003-of-00016.csv.

    --defer-below and --target-error add a column `defer` and list the images that a person should look at first.

    Parameters
    ----------
    run
        A run folder.
    images
        Image files, or folders of them. For a model of a table: a table with the same columns.
    out
        A new CSV file, or a Parquet file if the name ends in .parquet; by default the table is printed.
    resume
        Continue the job that left OUT.partial.
    shard
        K/N: predict only the K-th of N parts of the images, for example 3/16.
    workers
        Processes that decode images; by default one per core, and none for a few images.
    defer_below
        Defer images whose probability is below this to a person.
    target_error
        Defer as many images as needed to keep the error on the rest at or below this. The threshold is chosen on the
        run's validation images and holds with 95 % confidence for images like them. Images of no class are not covered.
    unknown_below
        Name images `unknown` whose p-value of belonging to any class is below this. It is the share of images of the
        classes that get this name by mistake, at most.
    follow_links
        Also predict images that are links to places outside the folders of images.
    use
        The model of the run: method, labelled_only or logistic_regression. By default the method's, unless
        a baseline was better on held-out labels.
    trust_code
        Import the network that the settings of the run name, if it is not one of cotrain's. Its code runs.
    """
    request = Request(run, images, out, resume, shard, workers, defer_below, target_error, unknown_below, follow_links)
    request.check()
    if request.finished:
        print(f"{request.own_out} is already complete")
        return
    console = terminal(stderr=True, quiet=own_rank() > 0)
    prediction = prepared(run, images, request.choices(use, trust_code=trust_code), console)
    if prediction.promised is not None and own_rank() == 0:
        print(_promise(prediction, prediction.promised), file=sys.stderr)
    done = None
    try:
        if request.own_out is None:
            prediction.job.to_stdout()
        else:
            done = prediction.to_file(request.own_out, resume=request.resumes)
    except (Interrupted, KeyboardInterrupt) as stop:
        raise Interrupted(f"{str(stop) or 'interrupted'}; {request.how_to_resume}") from stop
    if own_rank() == 0:
        for line in _remarks(request, prediction, use):
            print(line, file=sys.stderr)
    if done is not None:
        print(_summary(done, request.own_out, prediction.job))


def _remarks(request: "Request", prediction: Prediction, use: str) -> Iterator[str]:
    """Which model predicted, and how far its numbers can be trusted."""
    if prediction.folder != request.run:
        result = Run.open(request.run).result or UNKNOWN
        why = f", which was {how_better(result, prediction.model.config.unit)}" if use == BETTER else ""
        yield f"using {prediction.folder.name}{why}"
    yield how_calibrated(prediction.folder)
    if prediction.promised is not None:
        yield _not_covered(prediction.model, request.unknown_below)


@dataclass(frozen=True)
class Request:
    """The command line, and what it means for this process."""

    run: Path
    images: tuple[Path, ...]
    out: Path | None
    resume: bool
    shard: str | None
    workers: int | None
    defer_below: float | None
    target_error: float | None
    unknown_below: float | None
    follow_links: bool

    def check(self) -> None:
        if self.defer_below is not None and self.target_error is not None:
            raise UserError("--defer-below and --target-error both set what to defer; use only one")
        if not self.images:
            raise UserError("predict needs image files or folders, or a table, after the run folder")
        if job_size() > 1 and self.shard is not None:
            raise UserError("under torchrun, each process predicts its own shard; omit --shard")
        if self.own_out is None and job_size() > 1:
            raise UserError("under torchrun, each process writes its own file; add --out")
        if self.own_out is None and is_discarded(sys.stdout):
            raise UserError("standard output is closed; redirect it, or name a file by --out")
        if self.own_out is None and self.resume:
            raise UserError("--resume needs the --out of the job to resume")
        if self.shard is not None:
            Shard.parse(self.shard)
        if self.own_out is not None and not self.finished:
            check_out(self.own_out, resume=self.resumes)
            if self.own_out.suffix == PARQUET:
                import_pyarrow()

    @property
    def own_shard(self) -> Shard:
        if job_size() > 1:
            return Shard(own_rank() + 1, job_size())
        return WHOLE if self.shard is None else Shard.parse(self.shard)

    @property
    def own_out(self) -> Path | None:
        return self.own_shard.name(self.out) if self.out is not None and job_size() > 1 else self.out

    @property
    def finished(self) -> bool:
        """Of several processes, some may have finished before the job was stopped."""
        return self.resume and job_size() > 1 and self.own_out is not None and self.own_out.exists()

    @property
    def resumes(self) -> bool:
        """Of several processes, some may not have begun before the job was stopped."""
        if job_size() > 1 and self.own_out is not None and not partial_folder(self.own_out).exists():
            return False
        return self.resume

    def choices(self, use: str, *, trust_code: bool) -> Choices:
        return Choices(
            use=use,
            shard=self.own_shard,
            processes=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            workers=self.workers,
            defer_below=self.defer_below,
            target_error=self.target_error,
            unknown_below=self.unknown_below,
            follow_links=self.follow_links,
            trust_code=trust_code,
        )

    @property
    def how_to_resume(self) -> str:
        if self.out is None:
            return "nothing is saved; a job with --out can be resumed"
        if len(self.images) > MOST_ARGUMENTS:
            return "to resume, add --resume to the same command"
        started = os.environ.get("LOCAL_WORLD_SIZE", "1")
        program = ["cotrain"] if job_size() == 1 else ["torchrun", "--nproc-per-node", started, "-m", "cotrain"]
        options = {
            "--out": self.out,
            "--shard": self.shard,
            "--workers": self.workers,
            "--defer-below": self.defer_below,
            "--target-error": self.target_error,
            "--unknown-below": self.unknown_below,
        }
        words = [str(word) for name, value in options.items() if value is not None for word in (name, value)]
        words += ["--follow-links"] if self.follow_links else []
        return "resume with: " + shlex.join(
            [*program, "predict", str(self.run), *map(str, self.images), *words, "--resume"]
        )


def _promise(prediction: Prediction, promised: Threshold) -> str:
    """The threshold that was chosen, and why."""
    many = prediction.model.config.unit.many
    evidence = (
        f"{promised.wrong} of the other {promised.answered} {kind_of_held_out(Run.open(prediction.folder))} were wrong"
    )
    bound = f"so the error on {many} like them is at most {rounded_up(100 * promised.bound)} % (95 % confidence)"
    return f"deferring {many} with a probability below {promised.probability:.9g}: {evidence}, {bound}"


def _not_covered(model: Model, unknown_below: float | None) -> str:
    """What the promised error says nothing about."""
    uncovered = f"the promised error does not cover {model.config.unit.many} that belong to no class"
    if model.belonging is None or unknown_below is None:
        found = "; --unknown-below 0.05 names most of them" if model.belonging is not None else ""
        return f"{uncovered}{found}"
    return f"{uncovered} and were not recognised as unknown"


def _summary(done: Done, out: Path | None, job: Job) -> str:
    unit = job.unit
    deferred = f", {done.deferred} deferred" if job.below is not None else ""
    deferred += f", {done.unknown} unknown" if job.unknown else ""
    speed = f" ({done.per_second:,.0f} {unit.many} per second)" if done.predicted else ""
    unreadable = f", {done.unreadable} unreadable" if unit is Unit.IMAGE else ""
    return f"{done.images} {unit.many}{unreadable}{deferred} -> {out}{speed}"


def rounded_up(bound: float) -> str:
    """To two significant digits. Rounding down would claim a tighter bound than the data support."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(str(bound))):g}"
