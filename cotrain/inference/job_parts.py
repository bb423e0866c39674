"""The finished part of a prediction job, on disk: OUT.partial holds what `--resume` needs.

job.json says which model, images and options the job has. Each rows-FIRST-END.npz holds the predictions of the images
FIRST to END - 1. Every file is either complete or absent.
"""

import hashlib
import io
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from cotrain.inference.streaming import RECORD, UNREADABLE, Predicted, joined
from cotrain.runs.interrupt import Interrupted
from cotrain.storage.reading import read_arrays, read_json, reason
from cotrain.storage.regular import open_regular
from cotrain.storage.writing import is_partial, names_in, write_json, write_whole
from cotrain.types import UserError

SECONDS = 10.0  # between two parts: the most that a kill loses
ROWS = 16_384  # in a part, at most about
LOCK, JOB = ".lock", "job.json"
NAME = re.compile(r"rows-(\d{12})-(\d{12})\.npz")
ERRORS = TypeAdapter(list[tuple[int, str]])
WORDS = {  # how each fact of a job is named in an error message
    "model": "another model",
    "temperature": "another temperature of the model",
    "images": "other data",
    "shard": "another --shard",
    "defer_below": "another --defer-below or --target-error",
    "unknown_below": "another --unknown-below",
    "batch": "another version of cotrain",
}


class Parts:
    """A folder of parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[tuple[int, Path]]:
        """The end and the path of each part, from the first image on and without a gap."""
        found = {first: (end, path) for path in self.files() for first, end in [_rows(path)] if first < end}
        parts, end = [], 0
        while end in found:
            parts.append(found[end])
            end = found[end][0]
        return parts

    def files(self) -> Iterator[Path]:
        return (path for path in self.folder.iterdir() if NAME.fullmatch(path.name))

    def keep_connected(self) -> int:
        """Delete what comes after a gap, which a deleted part leaves, and return the number of finished images."""
        parts = self.paths()
        for path in {*self.files()} - {path for _, path in parts}:
            path.unlink()
        return parts[-1][0] if parts else 0

    def write(self, first: int, predicted: Predicted) -> None:
        content = io.BytesIO()
        errors = json.dumps(list(predicted.errors.items())).encode()
        np.savez_compressed(content, records=predicted.records, errors=np.frombuffer(errors, np.uint8))
        write_whole(self.folder / f"rows-{first:012d}-{first + len(predicted):012d}.npz", content.getvalue())

    def read(self, classes: int) -> Iterator[Predicted]:
        """All parts, which were predicted by a model with so many classes."""
        return (_read(path, classes) for _, path in self.paths())


def _rows(path: Path) -> tuple[int, int]:
    """The first row of a part and the row after its last, by its name."""
    name = NAME.fullmatch(path.name)
    assert name is not None
    return int(name[1]), int(name[2])


def _read(path: Path, classes: int) -> Predicted:
    first, end = _rows(path)
    try:
        arrays = read_arrays(path)
        records, errors = arrays["records"], ERRORS.validate_json(arrays["errors"].tobytes())
        if records.dtype != RECORD or len(records) != end - first:
            raise ValueError("it does not hold the predictions that its name says")
        labels = records["label"]
        if np.flatnonzero(labels == UNREADABLE).tolist() != [row for row, _ in errors]:
            raise ValueError("its errors are not those of its unreadable files")
        if labels.max() >= classes or labels.min() < UNREADABLE:
            raise ValueError("it has a class that the model does not have")
        return Predicted(records, dict(errors))
    except (OSError, ValueError, KeyError) as error:
        reasons = f"{path} is damaged ({reason(error)})"
        raise UserError(f"{reasons}; delete it to predict that part again with --resume") from error


class Saver:
    """Collects batches and writes a part every few seconds."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.end = parts.keep_connected()
        self.waiting: list[Predicted] = []
        self.saved = time.monotonic()

    def add(self, predicted: Predicted) -> None:
        self.waiting.append(predicted)
        if time.monotonic() - self.saved > SECONDS or sum(map(len, self.waiting)) >= ROWS:
            self.save()

    def save(self) -> None:
        if self.waiting:
            part = joined(self.waiting)
            self.parts.write(self.end, part)
            self.end += len(part)
        self.waiting, self.saved = [], time.monotonic()


def job_facts(model_file: Path, paths: Sequence[str], **options: Any) -> dict[str, Any]:
    """What must be the same when a job is resumed."""
    with open_regular(model_file) as file:
        model = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    images = hashlib.blake2b(digest_size=16)
    for path in paths:
        images.update(path.encode(errors="surrogatepass") + b"\0")
    return {"model": model, "images": f"{len(paths)} {images.hexdigest()}", **options}


def partial_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def check_out(out: Path, *, resume: bool) -> None:
    """Raise an error if the job cannot begin, or cannot be resumed."""
    folder = partial_folder(out)
    if os.path.lexists(out):  # also a link to nothing
        raise UserError(f"{out} already exists; choose another --out")
    if folder.exists() and not resume and not _is_without_rows(folder):
        raise UserError(f"{folder} holds an unfinished job: add --resume to continue it, or delete it to start again")
    if resume and not folder.exists():
        raise UserError(f"there is nothing to resume: {folder} does not exist; omit --resume")


@contextmanager
def unfinished(out: Path, facts: Mapping[str, Any], *, resume: bool) -> Iterator[Parts]:
    """The parts of a new or a resumed job, for one process at a time. They are deleted unless there is an error.

    A new job that fails before it has finished a row is deleted as well.
    """
    check_out(out, resume=resume)
    folder = partial_folder(out)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create {folder}: {error.strerror}; choose another --out") from error
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(f"another process is writing {out}") from error
    try:
        try:
            check_out(out, resume=resume)  # another process may have written rows in the meantime
            _check_same(folder, facts, resume=resume)
            yield Parts(folder)
        finally:
            lock.release()
    except Interrupted:
        raise
    except Exception:
        if not resume and _is_without_rows(folder):
            _delete(folder)
        raise
    _delete(folder)


def _is_without_rows(folder: Path) -> bool:
    """Whether a job left nothing that is worth resuming, and nobody else left anything."""
    return folder.is_dir() and names_in(folder) <= {LOCK, JOB}


def _delete(folder: Path) -> None:
    left = [path for path in folder.iterdir() if is_partial(path.name)]  # by a process that was killed
    for path in (*Parts(folder).files(), *left, folder / LOCK, folder / JOB):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it holds a file of somebody else
        folder.rmdir()


def _check_same(folder: Path, facts: Mapping[str, Any], *, resume: bool) -> None:
    path = folder / JOB
    if not resume or (not path.exists() and not Parts(folder).paths()):  # new, or killed before this file was written
        write_json(path, facts)
        return
    started = read_json(path)
    if not isinstance(started, dict):
        raise UserError(f"{path} is damaged; delete {folder} to start again")
    if changed := [words for name, words in WORDS.items() if started.get(name) != facts.get(name)]:
        raise UserError(
            f"{folder} was started with {' and '.join(changed)}: repeat that command with --resume, or delete the "
            "folder to start again"
        )
