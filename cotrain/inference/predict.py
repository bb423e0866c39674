"""Predict files or the rows of a table with a finished run, as `cotrain predict` and the page's Finish do."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from cotrain.data.formats.tables import read_features
from cotrain.data.workers import find_images, worker_count
from cotrain.evaluation.selective import Threshold
from cotrain.inference.job import Done, Job, TableJob
from cotrain.inference.job_parts import job_facts
from cotrain.inference.model import (
    BETTER,
    Model,
    load,
    possible_rate,
    promised_threshold,
    used_folder,
)
from cotrain.inference.shards import WHOLE, Shard
from cotrain.inference.streaming import ROWS_AT_ONCE, files_at_once
from cotrain.runs.run import Run
from cotrain.types import UserError


@dataclass(frozen=True)
class Choices:
    """How to predict; None: nothing is deferred, and no image is named unknown."""

    use: str = BETTER
    shard: Shard = WHOLE
    processes: int = 1  # on this machine, which share its cores
    workers: int | None = None  # decoding processes; None: as many as are useful
    defer_below: float | None = None
    target_error: float | None = None  # chooses the threshold of `defer_below`
    unknown_below: float | None = None
    follow_links: bool = False
    trust_code: bool = False


@dataclass(frozen=True)
class Prediction:
    """A job that is ready to run, and what was decided for it."""

    folder: Path  # of the model: the run, or a baseline in it
    job: Job
    content: Sequence[str]  # what identifies the inputs
    shard: Shard
    promised: Threshold | None  # the threshold that the error to reach led to

    @property
    def model(self) -> Model:
        return self.job.model

    def to_file(self, out: Path, *, resume: bool) -> Done:
        """Write a new table, or continue the one that was interrupted."""
        job = self.job
        options: dict[str, Any] = {
            "temperature": job.model.temperature,
            "shard": str(self.shard),
            "defer_below": job.below,
        }
        options |= {"unknown_below": job.unknown} if job.unknown else {}
        facts = job_facts(Run.open(self.folder).model_path, self.content, **options, batch=files_at_once(job.model))
        return job.to_file(out, facts, resume=resume)


def prepared(run: Path, inputs: Sequence[Path], choices: Choices, console: Console) -> Prediction:
    """The better model of the run, or the one that is named, and the inputs, found but not yet read."""
    model = load(run, use=choices.use, trust_code=choices.trust_code)
    folder = used_folder(Run.open(run), choices.use)
    promised, below = None, choices.defer_below
    if choices.target_error is not None:
        promised = promised_threshold(folder, model, choices.target_error)
        below = promised.probability
    unknown = 0.0 if choices.unknown_below is None else possible_rate(run, model, choices.unknown_below)
    job, content = _job(model, inputs, choices, below, unknown, console)
    return Prediction(folder, job, content, choices.shard, promised)


def _job(
    model: Model, inputs: Sequence[Path], choices: Choices, below: float | None, unknown: float, console: Console
) -> tuple[Job, Sequence[str]]:
    """What to predict, and what identifies it."""
    if not model.columns:
        found = find_images(inputs, follow_links=choices.follow_links, console=console)
        paths = choices.shard.of(found, files_at_once(model))
        return Job(model, paths, below, _workers(choices, len(paths)), console, unknown), paths
    if len(inputs) > 1:
        raise UserError("the model takes one table at a time")
    features = read_features(inputs[0], model.columns)
    rows = choices.shard.of([str(row) for row in range(len(features))], ROWS_AT_ONCE)
    content = hashlib.blake2b(features.hashes().tobytes(), digest_size=16).hexdigest()
    return TableJob(model, rows, below, 0, console, unknown, features=features), [content, *rows]


def _workers(choices: Choices, files: int) -> int:
    if choices.workers is not None:
        return choices.workers
    return min(worker_count(files), max(1, (os.cpu_count() or 1) // choices.processes))
