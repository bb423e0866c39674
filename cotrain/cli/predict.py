"""`cotrain predict`."""

import hashlib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators
from rich.console import Console

from cotrain.cli.options import Flag
from cotrain.cli.streams import is_discarded
from cotrain.data.formats.tables import read_features
from cotrain.data.workers import find_images, worker_count
from cotrain.evaluation.verdict import how_better
from cotrain.inference.job import Done, Job, TableJob
from cotrain.inference.job_parts import check_out, job_facts, partial_folder
from cotrain.inference.model import (
    BETTER,
    Model,
    how_calibrated,
    kind_of_held_out,
    load,
    possible_rate,
    promised_threshold,
    used_folder,
)
from cotrain.inference.prediction_table import PARQUET, import_pyarrow
from cotrain.inference.shards import WHOLE, Shard
from cotrain.inference.streaming import ROWS_AT_ONCE, files_at_once
from cotrain.progress import terminal
from cotrain.runs.interrupt import Interrupted
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
    model = load(run, use=use, trust_code=trust_code)
    chosen = used_folder(Run.open(run), use)
    below = defer_below if target_error is None else _chosen_threshold(chosen, model, target_error)
    console = terminal(stderr=True, quiet=own_rank() > 0)
    unknown = 0.0 if unknown_below is None else possible_rate(run, model, unknown_below)
    job, content = _job(request, model, below, unknown, console)
    try:
        if request.own_out is None:
            job.to_stdout()
            done = None
        else:
            options = {"temperature": model.temperature, "shard": str(request.own_shard), "defer_below": below}
            options |= {"unknown_below": unknown} if unknown else {}
            facts = job_facts(Run.open(chosen).model_path, content, **options, batch=files_at_once(model))
            done = job.to_file(request.own_out, facts, resume=request.resumes)
    except (Interrupted, KeyboardInterrupt) as stop:
        raise Interrupted(f"{str(stop) or 'interrupted'}; {request.how_to_resume}") from stop
    if own_rank() == 0:
        if chosen != run:
            why = f", which was {how_better(Run.open(run).result or {}, model.config.unit)}" if use == BETTER else ""
            print(f"using {chosen.name}{why}", file=sys.stderr)
        print(how_calibrated(chosen), file=sys.stderr)
        if target_error is not None:
            print(_not_covered(model, unknown_below), file=sys.stderr)
    if done is not None:
        print(_summary(done, request.own_out, below, unknown, model.config.unit))


def _job(
    request: "Request", model: Model, below: float | None, unknown: float, console: Console
) -> tuple[Job, Sequence[str]]:
    """What to predict, and what identifies it."""
    batch = files_at_once(model)
    if not model.columns:
        found = find_images(request.images, follow_links=request.follow_links, console=console)
        paths = request.own_shard.of(found, batch)
        return Job(model, paths, below, request.worker_count(len(paths)), console, unknown), paths
    if len(request.images) > 1:
        raise UserError("the model takes one table at a time")
    features = read_features(request.images[0], model.columns)
    rows = request.own_shard.of([str(row) for row in range(len(features))], ROWS_AT_ONCE)
    content = hashlib.blake2b(features.hashes().tobytes(), digest_size=16).hexdigest()
    return TableJob(model, rows, below, 0, console, unknown, features=features), [content, *rows]


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

    def worker_count(self, files: int) -> int:
        """By default, the processes on this machine share its cores."""
        if self.workers is not None:
            return self.workers
        wanted = worker_count(files)
        return min(wanted, max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))

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


def _chosen_threshold(run: Path, model: Model, target_error: float) -> float:
    """The threshold for this error, and a line that says why."""
    promised = promised_threshold(run, model, target_error)
    evidence = f"{promised.wrong} of the other {promised.answered} {kind_of_held_out(Run.open(run))} were wrong"
    most = rounded_up(100 * promised.bound)
    bound = f"so the error on {model.config.unit.many} like them is at most {most} % (95 % confidence)"
    if own_rank() == 0:
        what = f"deferring {model.config.unit.many} with a probability below {promised.probability:.9g}"
        print(f"{what}: {evidence}, {bound}", file=sys.stderr)
    return promised.probability


def _not_covered(model: Model, unknown_below: float | None) -> str:
    """What the promised error says nothing about."""
    uncovered = f"the promised error does not cover {model.config.unit.many} that belong to no class"
    if model.belonging is None or unknown_below is None:
        found = "; --unknown-below 0.05 names most of them" if model.belonging is not None else ""
        return f"{uncovered}{found}"
    return f"{uncovered} and were not recognised as unknown"


def _summary(done: Done, out: Path | None, below: float | None, unknown: float, unit: Unit) -> str:
    deferred = f", {done.deferred} deferred" if below is not None else ""
    deferred += f", {done.unknown} unknown" if unknown else ""
    speed = f" ({done.per_second:,.0f} {unit.many} per second)" if done.predicted else ""
    unreadable = f", {done.unreadable} unreadable" if unit is Unit.IMAGE else ""
    return f"{done.images} {unit.many}{unreadable}{deferred} -> {out}{speed}"


def rounded_up(bound: float) -> str:
    """To two significant digits. Rounding down would claim a tighter bound than the data support."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(str(bound))):g}"
