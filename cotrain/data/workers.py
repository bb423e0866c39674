"""Find image files, and decode many of them with several workers."""

import errno
import heapq
import json
import os
import stat
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cotrain.data import decode
from cotrain.data.decode import SUFFIXES
from cotrain.progress import counted, say
from cotrain.storage import regular
from cotrain.storage.regular import leads_out
from cotrain.types import UserError

S = TypeVar("S")
T = TypeVar("T")
Items = TypeVar("Items", Sequence[Any], NDArray[Any])
HIDDEN = (".", "__MACOSX")
LONGEST_SHOWN = 60  # characters of a path in an error
FILES_PER_TASK = 64
WORTH_WORKERS = 256  # with fewer files, starting workers takes longer than decoding
AHEAD = 3  # tasks that wait to be fetched, besides one per worker
CRASHED = "decoding it crashed the decoder"


@dataclass(frozen=True)
class Found:
    """A file in a folder, with the numbers that change when the file does."""

    path: str  # relative to the folder, with /
    size: int  # bytes
    modified: int  # ns
    changed: int  # ns; differs even if a copy keeps the modification time
    outside: bool = False  # a link out of the folder, which is not followed

    @property
    def is_image(self) -> bool:
        return not self.outside and os.path.splitext(self.path)[1].lower() in SUFFIXES


@dataclass(frozen=True)
class Listing:
    """The image files of a folder, sorted by path. Columns, because a million `Found` would take half a gigabyte."""

    paths: Sequence[str]
    stamps: NDArray[np.int64]  # (n, 3) bytes and times of the last changes, as in `Found`
    others: Sequence[str] = ()  # files that are no images
    outside: Sequence[str] = ()  # links out of the folder, to files or to folders

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class Decoded:
    """A batch of images. The row of an unreadable file is black, and its error says why."""

    images: NDArray[np.uint8]  # (n, h, w, c)
    errors: list[str | None]


def walk(folder: Path, console: Console | None = None, *, follow_links: bool) -> Iterator[Found]:
    """Every file below except hidden ones, in no particular order. A console shows the number of files and folders.

    Links are followed, but each real folder is entered once, whatever leads to it. Links out of the folder are followed
    only with `follow_links`; without it, only their names are found.
    """
    entries = _entries(folder, None if follow_links else os.path.realpath(folder))
    return filter(None, entries if console is None else counted(entries, None, f"scanning {folder}", console))


def listed(files: Iterable[Found]) -> Listing:
    paths, stamps = [], array("q")
    others: dict[bool, list[str]] = {False: [], True: []}
    for file in files:
        if file.is_image:
            paths.append(file.path)
            stamps.extend((file.size, file.modified, file.changed))
        else:
            others[file.outside].append(file.path)
    order = np.array(paths, object).argsort(kind="stable")
    facts = np.array(stamps, np.int64).reshape(-1, 3)[order]
    return Listing([paths[row] for row in order], facts, sorted(others[False]), sorted(others[True]))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _entries(root: Path, inside: str | None) -> Iterator[Found | None]:
    """The files below, and None for each folder. Links come last, so that a folder has its own path if it has one.

    Links out of the folder `inside` are found and not followed.
    """
    entered = set[tuple[int, int]]()
    folders, links = [""], list[tuple[int, str]]()  # relative to the root, with / at the end
    while folders or links:
        folder = folders.pop() if folders else heapq.heappop(links)[1]
        try:
            identity = _identity(os.stat(root / folder))
            if identity in entered:
                continue
            entered.add(identity)
            yield None
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith(HIDDEN):
                        continue
                    name = folder + entry.name
                    if inside is not None and entry.is_symlink() and leads_out(entry.path, inside):
                        yield Found(name, 0, 0, 0, outside=True)
                        continue
                    status = _status(entry)
                    if stat.S_ISDIR(status.st_mode) and entry.is_symlink():
                        heapq.heappush(links, (name.count("/"), f"{name}/"))
                    elif stat.S_ISDIR(status.st_mode):
                        folders.append(f"{name}/")
                    elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):  # pipes and devices could block
                        yield Found(name, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise UserError(
                f"{root} has folders nested too deeply: a path that begins with {folder[:LONGEST_SHOWN]} has more "
                "characters than the system can open; move what is in it to a folder with a shorter path"
            ) from error


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:  # a link to nothing, or to itself
        return entry.stat(follow_symlinks=False)


def find_images(paths: Sequence[Path], *, follow_links: bool = False, console: Console | None = None) -> list[str]:
    """The given files, and every image file in the given folders, sorted. Links out of these folders are left out."""
    found: list[str] = []
    for path in paths:
        if path.is_dir():
            inside, links = list[str](), 0
            for file in walk(path, console, follow_links=follow_links):
                links += file.outside
                if file.is_image:
                    inside.append(file.path)
            if not inside:
                raise UserError(no_image(path, links))
            if links and console is not None:
                say(
                    console, f"{path}: left out, because they are links out of it: {links:,} (--follow-links uses them)"
                )
            found += (str(path / name) for name in sorted(inside, key=_by_folder))
        else:
            found.append(str(path))
    return found


def no_image(folder: Path, links: int) -> str:
    more = f", apart from {links:,} links out of it; follow them with --follow-links" if links else ""
    return f"there is no image file in {folder} ({', '.join(sorted(SUFFIXES))}){more}"


def _by_folder(path: str) -> str:
    """Sorts by folder, then by name: no name contains the character that stands for / here."""
    return path.replace("/", "\0")


def in_parts(items: Items, size: int) -> Iterator[Items]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Workers:
    """Runs decoding tasks in `count` processes, or in this process if `count` is 0."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.idle: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()  # None: one that has to be started
        self.closing = ExitStack()

    def __enter__(self) -> Self:
        for _ in range(self.count):
            self.idle.put(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def map(self, tasks: Iterable[dict[str, Any]]) -> Iterator[list[Any]]:
        """The answers, in order."""
        if self.count == 0:
            return (checked(decode.carry_out(task)) for task in tasks)
        return self._in_order(self._carry_out, tasks)

    def decode(self, batches: Iterable[Sequence[str]], shape: Sequence[int]) -> Iterator[Decoded]:
        """The pixels of each batch of files, in order. The workers are a few batches ahead of the caller."""
        if self.count == 0:
            return (Decoded(*decode.read_images(paths, shape)) for paths in batches)
        return self._in_order(lambda paths: self._decode(paths, shape), batches)

    def _in_order(self, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """As `map` of an executor, but only a few items are begun before their results are asked for."""
        with ThreadPoolExecutor(self.count) as pool:
            begun: deque[Future[T]] = deque()
            try:
                for item in items:
                    begun.append(pool.submit(work, item))
                    if len(begun) > self.count + AHEAD:
                        yield begun.popleft().result()
                while begun:
                    yield begun.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            [sys.executable, "-P", decode.__file__, regular.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libtiff and others print warnings
            start_new_session=True,  # Ctrl-C goes to the parent, which stops its workers
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )
        self.closing.callback(worker.__exit__, None, None, None)
        self.closing.callback(worker.kill)
        return worker

    def _ask(self, task: dict[str, Any], receive: Callable[[IO[bytes]], T | None]) -> T | None:
        """What an idle worker answers; None if it crashed."""
        worker = self.idle.get()
        try:
            worker = worker or self._start()
            answer = _asked(worker, task, receive)
            if answer is None:
                worker.kill()
                worker = None
            return answer
        finally:  # also if no process can be started: waiting for a worker would never end
            self.idle.put(worker)

    def _carry_out(self, task: dict[str, Any]) -> list[Any]:
        answer = self._ask(task, _line)
        return self._retry_one_by_one(task) if answer is None else checked(answer)

    def _decode(self, paths: Sequence[str], shape: Sequence[int]) -> Decoded:
        answer = self._ask({"paths": paths, "shape": shape}, lambda file: _images(file, (len(paths), *shape)))
        if answer is not None:
            return answer
        if len(paths) == 1:
            return Decoded(np.zeros((1, *shape), np.uint8), [CRASHED])
        each = [self._decode([path], shape) for path in paths]
        return Decoded(np.concatenate([one.images for one in each]), [error for one in each for error in one.errors])

    def _retry_one_by_one(self, task: dict[str, Any]) -> list[Any]:
        """A worker crashed: try its files one by one, and leave out the file that crashes a worker again."""
        if len(task["paths"]) == 1:
            return [{"error": CRASHED}]
        files = zip(task["paths"], task["rows"], strict=True)
        return [self._carry_out({**task, "paths": [path], "rows": [row]})[0] for path, row in files]


def _asked(worker: subprocess.Popen[bytes], task: dict[str, Any], receive: Callable[[IO[bytes]], T | None]) -> T | None:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        worker.stdin.write(json.dumps(task).encode() + b"\n")
        worker.stdin.flush()
        return receive(worker.stdout)
    except BrokenPipeError:
        with suppress(BrokenPipeError):  # what was not sent would be an error when the workers are closed
            worker.stdin.close()
        return None


def _line(file: IO[bytes]) -> Any:
    line = file.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _images(file: IO[bytes], shape: tuple[int, ...]) -> Decoded | None:
    errors = _line(file)
    if errors is None:
        return None
    images = np.empty(shape, np.uint8)
    received = file.readinto(images.data.cast("B"))  # type: ignore[attr-defined]
    return Decoded(images, errors) if received == images.nbytes else None


def checked(answer: list[Any] | dict[str, str]) -> list[Any]:
    if isinstance(answer, dict):
        raise OSError(None, answer["failed"])
    return answer


def worker_count(files: int) -> int:
    """One worker per core, if there are enough files."""
    return 0 if files < WORTH_WORKERS else min(os.cpu_count() or 1, files // WORTH_WORKERS + 1)
