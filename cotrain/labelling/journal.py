"""The journal: every event as one line of JSON, on disk before anybody is told that it happened."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from filelock import FileLock, Timeout
from pydantic import ValidationError

from cotrain.labelling.events import EVENT, Event, How
from cotrain.storage.writing import sync_folder
from cotrain.types import UserError

E = TypeVar("E", bound=Event)


class NotSaved(OSError):
    """An event could not be written. It did not happen, and the earlier ones are safe."""


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock of a journal, so that only one process labels a folder."""
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for the labels; create it first")
    lock = FileLock(path.with_name(f".{path.stem}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise UserError(
            f"another process is labelling {path.parent}; use the address that it printed, or stop it first"
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot write to {path.parent} ({error.strerror}); use --labels FILE to keep the labels in another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


class Journal:
    """The events of a folder in `labels-history.jsonl`, in memory and on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self._content = bytearray()  # what the file holds
        self._file: int | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read what is there. A last line that a kill cut off was never confirmed, and is dropped."""
        journal = cls(path)
        if path.exists():
            content = _read(path)
            whole = content[: content.rfind(b"\n") + 1]
            for number, line in _lines(whole):
                journal.events.append(_parsed(path, number, line, journal.next_id))
            journal._content += whole
            if len(whole) < len(content):
                os.truncate(path, len(whole))
        return journal

    @property
    def next_id(self) -> int:
        return self.events[-1].id + 1 if self.events else 1

    def add(self, kind: type[E], *, who: str, how: How, **details: Any) -> E:
        """Write one event and return it once it is on disk."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        event = kind(id=self.next_id, time=time, who=who, how=how, **details)
        try:
            self._append(event.model_dump_json(exclude_none=True, by_alias=True).encode() + b"\n")
        except OSError as error:
            raise NotSaved(
                f"not saved: {self.path} cannot be written ({error.strerror}); the earlier labels are safe"
            ) from error
        self.events.append(event)
        return event

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, line: bytes) -> None:
        file = self._opened()
        size = os.fstat(file).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(file, line[written:])
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)  # half a line would spoil the next one
            raise
        self._content += line

    def _opened(self) -> int:
        """The open file. One that was deleted or replaced meanwhile is written again: nobody would find the events."""
        if self._file is not None and not self._in_place(self._file):
            self.close()
        if self._file is None:
            missing = not self.path.exists()
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
            self._check_same(self._file)
            if missing:
                sync_folder(self.path.parent)
        return self._file

    def _in_place(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _check_same(self, file: int) -> None:
        """The file holds our events; a new one gets them."""
        size = os.fstat(file).st_size
        if size == 0 and self._content:
            os.write(file, self._content)
            os.fsync(file)
        elif size != len(self._content) or self.path.read_bytes() != self._content:
            self.close()
            raise OSError(None, "another program has changed it; restart cotrain label")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _parsed(path: Path, number: int, line: bytes, least_id: int) -> Event:
    problem = f"{path}, line {number} is damaged; restore the file from a copy, or remove the line"
    try:
        event = EVENT.validate_json(line)
    except ValidationError as error:
        raise UserError(problem) from error
    if event.id < least_id:
        raise UserError(problem)
    return event


def up_to(events: Sequence[Event], last: int) -> list[Event]:
    """The events up to the one with this id."""
    return [event for event in events if event.id <= last]
