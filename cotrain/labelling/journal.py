"""The journal: every event as one line of JSON, on disk before anybody is told that it happened."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from filelock import FileLock, Timeout
from pydantic import ValidationError

from cotrain.labelling.events import EVENT, Event, How
from cotrain.storage.reading import read_bytes
from cotrain.storage.regular import open_to_append, real_path
from cotrain.storage.writing import replacing, sync_folder
from cotrain.types import UserError

E = TypeVar("E", bound=Event)
Stamp = tuple[int, int, int, int, int]
LAST = 4096  # bytes at the end of the file that are compared before each event


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
    """The events of a folder in `labels-history.jsonl`, in memory and on disk.

    Other programs may change the file at any time. If it is deleted or cut, it is written again; if it holds something
    else, nothing is written to it, and a copy of what it held is kept beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(real_path(path, path.parent))
        self.events: list[Event] = []
        self.news = ""  # what happened to the file
        self._content = bytearray()  # what the file holds
        self._file: int | None = None
        self._stamp: Stamp | None = None  # of the file after it was last written
        self._copy: tuple[int, Path] | None = None  # how much of the content it holds

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read what is there. A last line that a kill cut off was never confirmed, and is dropped."""
        try:
            journal = cls(path)
            journal._content += read_bytes(journal.path, inside=journal.path.parent)
        except FileNotFoundError:
            return journal
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        whole = journal._content.rfind(b"\n") + 1
        for number, line in _lines(bytes(journal._content[:whole])):
            journal.events.append(_parsed(path, number, line, journal.next_id))
        if whole < len(journal._content):
            journal._end(whole)
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

    def keep(self) -> None:
        """Write the file again if it was deleted or cut since."""
        if self._content:
            self._opened()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _end(self, whole: int) -> None:
        """Drop the last line if it is not complete. A complete one only lacks its end, which an editor removed."""
        last = bytes(self._content[whole:])
        file = open_to_append(self.path, inside=self.path.parent)
        try:
            self.events.append(_parsed(self.path, len(self.events) + 1, last, self.next_id))
        except UserError:
            os.ftruncate(file, whole)
            del self._content[whole:]
        else:
            _write(file, b"\n")
            self._content += b"\n"
        finally:
            os.close(file)

    def _append(self, line: bytes) -> None:
        file = self._opened()
        try:
            _write(file, line)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, len(self._content))  # half a line would spoil the next one
            self._stamp = None
            raise
        self._content += line
        self._stamp = _stamp(os.fstat(file))

    def _opened(self) -> int:
        """The open file, which holds all events so far and nothing else."""
        if self._file is not None and not self._is_unchanged(self._file):
            self.close()
        if self._file is None:
            missing = not self.path.exists()
            self._restore()
            self._file = open_to_append(self.path, inside=self.path.parent)
            self._stamp = _stamp(status := os.fstat(self._file))
            if status.st_size != len(self._content):
                self.close()
                raise OSError(None, "another program is changing it")
            if missing:
                sync_folder(self.path.parent)
        return self._file

    def _is_unchanged(self, file: int) -> bool:
        """Whether nobody else has written to the file, or put another one in its place."""
        try:
            if _stamp(os.stat(self.path, follow_symlinks=False)) != self._stamp:
                return False
            end = self._content[-LAST:]
            os.lseek(file, -len(end), os.SEEK_END)
            return os.read(file, len(end)) == end
        except OSError:
            return False

    def _restore(self) -> None:
        """Make the file hold all events, if what it holds is a part of them."""
        try:
            found = read_bytes(self.path, inside=self.path.parent)
        except FileNotFoundError:
            found = b""
        except OSError as error:
            raise OSError(None, f"{error.strerror}; {self._kept()}") from error
        if found == self._content:
            return
        if not self._content.startswith(found[: found.rfind(b"\n") + 1]):
            raise OSError(None, f"another program has changed it; {self._kept()}, and restart cotrain label")
        with replacing(self.path, mode=0o644) as file:
            file.write(self._content)
        self.news = f"Another program cut or removed {self.path.name}. It was written again."

    def _kept(self) -> str:
        """Where a copy of all events is."""
        if self._copy is None or self._copy[0] != len(self._content):
            copy = self.path.with_name(f"{self.path.stem}.kept-{datetime.now():%Y%m%d-%H%M%S-%f}{self.path.suffix}")
            try:
                with replacing(copy) as file:
                    file.write(self._content)
            except OSError:
                return "restore it from a copy"
            self._copy = len(self._content), copy
        return f"put {self._copy[1].name} in its place to keep all labels"


def _write(file: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(file, content[written:])
    os.fsync(file)


def _stamp(status: os.stat_result) -> Stamp:
    """Numbers of which one changes when somebody writes to the file or replaces it."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


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
