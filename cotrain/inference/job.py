"""Prediction jobs: from a list of files to a table in a file or on standard output."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from cotrain.data.feature_table import Features
from cotrain.data.workers import Workers
from cotrain.inference.job_parts import Parts, unfinished
from cotrain.inference.model import Model
from cotrain.inference.prediction_table import (
    PATH,
    ROW,
    Row,
    columns,
    csv_writer,
    in_order_of_paths,
    is_unknown,
    least_confident_first,
    open_table,
    rows_of,
)
from cotrain.inference.streaming import (
    Predicted,
    check_channels,
    files_at_once,
    predict_in_batches,
    predict_rows,
)
from cotrain.progress import counted
from cotrain.runs.interrupt import Interrupted, stop_requests
from cotrain.storage.writing import replacing
from cotrain.types import Unit, UserError


@dataclass(frozen=True)
class Done:
    """What a job has written."""

    images: int
    unreadable: int
    deferred: int
    unknown: int  # images that get no class
    predicted: int  # images that this process predicted; an earlier one may have predicted the others
    seconds: float  # that it took

    @property
    def per_second(self) -> float:
        return self.predicted / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Job:
    model: Model
    paths: Sequence[str]
    below: float | None  # defer images with a lower probability to a person; None: there is no such column
    workers: int  # decoding processes; 0: decode in this one
    console: Console
    unknown: float = 0.0  # images that belong to a class with a lower p-value get none
    first: ClassVar[str] = PATH  # the first column
    unit: ClassVar[Unit] = Unit.IMAGE

    def __post_init__(self) -> None:
        check_channels(self.model)

    def to_file(self, out: Path, facts: dict[str, Any], *, resume: bool) -> Done:
        """Write a new file, which gets its name when it is complete. `facts` must not change when a job is resumed."""
        with unfinished(out, facts, resume=resume) as parts:
            began = time.monotonic()
            predicted = self._fill(parts)
            seconds = time.monotonic() - began
            counts = self._write(parts, out)
        return Done(len(self.paths), *counts, predicted, seconds)

    def to_stdout(self) -> None:
        """Print the rows as they are predicted or, if they have to be sorted, at the end."""
        if self.below is not None:
            with tempfile.TemporaryDirectory() as folder, closing(Parts(Path(folder), {})) as parts:
                try:
                    self._fill(parts)
                finally:  # a signal ends the job, and what was predicted is printed
                    write = csv_writer(sys.stdout, self._columns)
                    for rows in self._rows(parts):
                        write(rows)
            return
        write, first = csv_writer(sys.stdout, self._columns), 0
        with stop_requests() as stop:
            for predicted in self._predicted(0):
                paths = self.paths[first : first + len(predicted)]
                write(rows_of(paths, predicted, self.model.classes, None, self.first, self.unknown))
                sys.stdout.flush()
                first += len(predicted)
                if stop.asked and first < len(self.paths):
                    raise Interrupted(f"stopped after {first:,} of {len(self.paths):,} {self.unit.many}, printed above")

    @property
    def _columns(self) -> list[str]:
        return columns(self.below, self.first, belongs=self.model.belonging is not None)

    def _predicted(self, start: int) -> Iterator[Predicted]:
        """The batches from image `start` on, with their progress."""
        with Workers(self.workers) as workers:
            batches = predict_in_batches(self.model, self.paths, workers, files_at_once(self.model), start)
            yield from counted(batches, len(self.paths), "predicting images", self.console, start=start, size=len)

    def _fill(self, parts: Parts) -> int:
        """Predict what the parts lack and return how many images that was. After a signal, what is done is saved."""
        if parts.end < len(self.paths):
            parts.end -= parts.end % files_at_once(self.model)  # damage may begin within a batch
        start = parts.end
        with stop_requests() as stop:
            try:
                for predicted in self._predicted(start):
                    parts.add(predicted)
                    if stop.asked:
                        break
            except KeyboardInterrupt:  # a second signal does not wait for the batch
                parts.save()
                raise
            parts.save()
        if parts.end < len(self.paths):
            raise Interrupted(f"stopped after {parts.end:,} of {len(self.paths):,} {self.unit.many}")
        return parts.end - start

    def _rows(self, parts: Parts) -> Iterator[list[Row]]:
        if self.below is None:
            return in_order_of_paths(self.paths, parts.read, self.model.classes, self.first, self.unknown)
        return least_confident_first(self.paths, parts.read, self.model.classes, self.below, self.first, self.unknown)

    def _write(self, parts: Parts, out: Path) -> tuple[int, int, int]:
        """Write the whole table and give it its name. Returns how many images are unreadable, deferred and unknown."""
        unreadable = deferred = unknown = 0
        try:
            with replacing(out, within=parts.folder) as file:
                with open_table(file, out.suffix, self._columns) as write:
                    for rows in self._rows(parts):
                        write(rows)
                        unreadable += sum(bool(row["error"]) for row in rows)
                        deferred += sum(row.get("defer") == "yes" for row in rows)
                        unknown += sum(is_unknown(row, self.unknown) for row in rows)
                if os.path.lexists(out):
                    raise UserError(f"{out} has appeared in the meantime; move it away and add --resume")
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror or error}; make room and add --resume") from error
        return unreadable, deferred, unknown


@dataclass(frozen=True)
class TableJob(Job):
    """A job on the rows of a table; `paths` are their numbers."""

    features: Features = field(kw_only=True)
    first: ClassVar[str] = ROW
    unit: ClassVar[Unit] = Unit.ROW

    def __post_init__(self) -> None:
        """There is nothing to check: the columns are those of the model."""

    def _predicted(self, start: int) -> Iterator[Predicted]:
        rows = np.array(self.paths[start:], np.int64)
        batches = predict_rows(self.model, self.features, rows)
        yield from counted(batches, len(self.paths), "predicting rows", self.console, start=start, size=len)
