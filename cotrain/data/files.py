"""Find image files, and decode many of them with several workers."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from cotrain.data import decode
from cotrain.data.decode import SUFFIXES
from cotrain.types import UserError

HIDDEN = (".", "__MACOSX")
FILES_PER_TASK = 64
WORTH_WORKERS = 256  # with fewer files, starting workers takes longer than decoding


@dataclass(frozen=True)
class Found:
    """A file in a folder, with the numbers that change when the file does."""

    path: str  # relative to the folder, with /
    size: int  # bytes
    modified: int  # ns
    changed: int  # ns; differs even if a copy keeps the modification time

    @property
    def is_image(self) -> bool:
        return os.path.splitext(self.path)[1].lower() in SUFFIXES


def walk(folder: Path) -> Iterator[Found]:
    """Every file below except hidden ones, in no particular order. Follows links, but never in a circle."""
    yield from _walk(folder, "", {_identity(folder.stat())})


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _walk(folder: Path, prefix: str, above: set[tuple[int, int]]) -> Iterator[Found]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(HIDDEN):
                continue
            try:
                status = entry.stat()
            except OSError:  # a link to nothing, or to itself
                status = entry.stat(follow_symlinks=False)
            name = prefix + entry.name
            if stat.S_ISDIR(status.st_mode):
                identity = _identity(os.stat(entry.path))  # an entry's own has no inode on Windows
                if identity not in above:
                    yield from _walk(Path(entry.path), f"{name}/", above | {identity})
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):  # no pipes or devices, which could block
                yield Found(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The given files, and every image file in the given folders, sorted."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path / file.path for file in walk(path) if file.is_image)
            if not inside:
                raise UserError(f"there is no image file in {path} ({', '.join(sorted(SUFFIXES))})")
            found += inside
        else:
            found.append(path)
    return found


def in_parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Workers:
    """Runs decoding tasks in `count` processes, or in this process if `count` is 0."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self.closing = ExitStack()

    def __enter__(self) -> Self:
        for _ in range(self.count):
            self.idle.put(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def map(self, tasks: Sequence[dict[str, Any]]) -> Iterator[list[Any]]:
        """The answers, in order."""
        if self.count == 0:
            yield from (checked(decode.carry_out(task)) for task in tasks)
            return
        with ThreadPoolExecutor(self.count) as pool:
            try:
                yield from pool.map(self._carry_out, tasks)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-P", decode.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libtiff and others print warnings
            text=True,
            start_new_session=True,  # Ctrl-C goes to the parent, which stops its workers
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )
        self.closing.callback(worker.__exit__, None, None, None)
        self.closing.callback(worker.kill)
        return worker

    def _carry_out(self, task: dict[str, Any]) -> list[Any]:
        worker = self.idle.get()
        try:
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer.endswith("\n"):
            self.idle.put(worker)
            return checked(json.loads(answer))
        worker.kill()
        self.idle.put(self._start())
        return self._retry_one_by_one(task)

    def _retry_one_by_one(self, task: dict[str, Any]) -> list[Any]:
        """A worker crashed: try its files one by one, and leave out the file that crashes a worker again."""
        if len(task["paths"]) == 1:
            return [{"error": "decoding it crashed the decoder"}]
        files = zip(task["paths"], task["rows"], strict=True)
        return [self._carry_out({**task, "paths": [path], "rows": [row]})[0] for path, row in files]


def checked(answer: list[Any] | dict[str, str]) -> list[Any]:
    if isinstance(answer, dict):
        raise OSError(None, answer["failed"])
    return answer


def worker_count(files: int) -> int:
    """One worker per core, if there are enough files."""
    return 0 if files < WORTH_WORKERS else min(os.cpu_count() or 1, files // WORTH_WORKERS + 1)
