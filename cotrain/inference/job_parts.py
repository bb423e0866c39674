"""The finished part of a prediction job, on disk: OUT.partial holds what `--resume` needs.

job.json says which model, images and options the job has. What is damaged is predicted again.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from cotrain.inference.streaming import RECORD, UNREADABLE, Predicted, joined
from cotrain.runs.interrupt import Interrupted
from cotrain.storage.reading import read_json
from cotrain.storage.regular import open_regular
from cotrain.storage.rows import INDEX, Rows, keyed
from cotrain.storage.writing import is_partial, names_in, write_json
from cotrain.types import UserError

SECONDS = 10.0  # the most that a kill loses
ROWS = 16_384  # that are saved or read at once, about
FORMAT = 2
LOCK, JOB = ".lock", "job.json"
FILES = tuple(name + suffix for name in ("rows", "errors") for suffix in ("", INDEX))
LONGEST_ERROR = 300  # characters
TEXT = np.dtype(f"S{4 * LONGEST_ERROR}")
WORDS = {  # how each fact of a job is named in an error message
    "model": "another model",
    "temperature": "another temperature of the model",
    "images": "other data",
    "shard": "another --shard",
    "defer_below": "another --defer-below or --target-error",
    "unknown_below": "another --unknown-below",
    "batch": "another version of cotrain",
    "format": "another version of cotrain",
}


class Parts:
    """The predictions of the first images of a job, and why some of these images are unreadable, by their numbers."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder, job = folder, json.dumps(facts, sort_keys=True)
        self.records = Rows(folder / "rows", RECORD, (1,), keyed(f"rows {job}"))
        self.errors = Rows(folder / "errors", TEXT, (1,), keyed(f"errors {job}"))
        for rows in (self.records, self.errors):
            rows.drop_damaged()
        self.end = self._end()
        self.waiting: list[Predicted] = []
        self.saved = time.monotonic()

    def _end(self) -> int:
        """The number of images up to the first one whose prediction is missing. Those after it are not used."""
        lacking = np.flatnonzero(~_has(self.records, np.arange(len(self.records))))
        end = int(lacking[0]) if len(lacking) else len(self.records)
        for start in range(0, end, ROWS):
            numbers = np.arange(start, min(start + ROWS, end))
            unreadable = numbers[_read(self.records, numbers)["label"] == UNREADABLE]
            if len(lacking := unreadable[~_has(self.errors, unreadable)]):
                return int(lacking[0])
        return end

    def add(self, predicted: Predicted) -> None:
        """Keep a batch, every few seconds on disk."""
        self.waiting.append(predicted)
        if time.monotonic() - self.saved > SECONDS or sum(map(len, self.waiting)) >= ROWS:
            self.save()

    def save(self) -> None:
        part = joined(self.waiting)
        errors = [text[:LONGEST_ERROR].encode(errors="surrogatepass") for text in part.errors.values()]
        try:
            _write(self.errors, self.end + np.array([*part.errors], np.int64), np.array(errors, TEXT))
            _write(self.records, self.end + np.arange(len(part)), part.records)
        except OSError as error:
            raise UserError(
                f"cannot write {self.records.path}: {error.strerror}; make room and add --resume"
            ) from error
        self.end += len(part)
        self.waiting, self.saved = [], time.monotonic()

    def read(self) -> Iterator[Predicted]:
        for start in range(0, self.end, ROWS):
            numbers = np.arange(start, min(start + ROWS, self.end))
            records = _read(self.records, numbers)
            unreadable = np.flatnonzero(records["label"] == UNREADABLE)
            texts = [text.decode(errors="surrogatepass") for text in _read(self.errors, numbers[unreadable])]
            yield Predicted(records, dict(zip(unreadable.tolist(), texts, strict=True)))

    def close(self) -> None:
        self.records.close()
        self.errors.close()


def _has(rows: Rows, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.append(rows.digests != 0, False)[rows.places(numbers.astype(np.uint64))]


def _read(rows: Rows, numbers: NDArray[np.int64]) -> NDArray[Any]:
    return rows.read(rows.places(numbers.astype(np.uint64)))[:, 0]


def _write(rows: Rows, numbers: NDArray[np.int64], values: NDArray[Any]) -> None:
    if len(numbers):
        rows.write(rows.add(numbers.astype(np.uint64)), values[:, None])
        rows.save()


def job_facts(model_file: Path, paths: Sequence[str], **options: Any) -> dict[str, Any]:
    """What must be the same when a job is resumed."""
    with open_regular(model_file) as file:
        model = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    images = hashlib.blake2b(digest_size=16)
    for path in paths:
        images.update(path.encode(errors="surrogatepass") + b"\0")
    return {"format": FORMAT, "model": model, "images": f"{len(paths)} {images.hexdigest()}", **options}


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
            with closing(Parts(folder, facts)) as parts:
                yield parts
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
    for path in (*left, *(folder / name for name in (*FILES, LOCK, JOB))):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it holds a file of somebody else
        folder.rmdir()


def _check_same(folder: Path, facts: Mapping[str, Any], *, resume: bool) -> None:
    path, started = folder / JOB, facts
    if resume:
        with suppress(UserError):  # it is damaged: what another job predicted has other digests
            started = read if isinstance(read := read_json(path), dict) else facts
    if changed := dict.fromkeys(words for name, words in WORDS.items() if started.get(name) != facts.get(name)):
        raise UserError(
            f"{folder} was started with {' and '.join(changed)}: repeat that command with --resume, or delete the "
            "folder to start again"
        )
    write_json(path, facts)
