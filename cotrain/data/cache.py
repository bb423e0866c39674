"""A cache of decoded folders: all images of a folder, resized, in one file that later runs open immediately."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cotrain.data.decode import GREY, Unreadable, read_image, read_images
from cotrain.data.files import FILES_PER_TASK, Found, Workers, in_parts, worker_count
from cotrain.data.home import home, one_at_a_time
from cotrain.data.imagefile import ImageFile, append_facts
from cotrain.progress import counted, say
from cotrain.storage.writing import new_file, remove_abandoned
from cotrain.types import UserError

VERSION = 3
LARGEST_KEPT = 96  # images that all share one size keep it, up to this side
LARGEST_GREY = 64

Header = list[Any]  # height, width, mode
File = tuple[str, int, int, int]  # path, size, and times of its last changes


@dataclass(frozen=True)
class Known:
    """What an earlier copy holds about a file that has not changed since."""

    row: int
    header: Header
    hash: int


def decoded(folder: Path, found: Sequence[Found], size: str | int, console: Console) -> ImageFile:
    """The images of `found`, in order, as one file. Only files that changed since the last time are decoded again.

    `size` is HEIGHTxWIDTH, or the largest side of a size to choose. An unreadable file becomes a row of zeros;
    `facts.errors` holds the reason.
    """
    copy = Copy(_place(folder, size), folder, console)
    listing = [(file.path, file.size, file.modified, file.changed) for file in found]
    if (current := copy.current(listing)) is not None:
        return current
    with _locked(copy.path, console):
        if (current := copy.current(listing)) is not None:  # another process wrote it in the meantime
            return current
        old = copy.opened()
        with _writing(copy.path) as part, Workers(worker_count(len(listing))) as workers:
            append_facts(part, Decoding(part, workers, folder, listing, console).facts(size, old))
            if old is not None:
                old.close()  # Windows does not replace an open file
    return ImageFile(copy.path, copy.repair)


class Copy:
    """The file that holds the decoded images of a folder."""

    def __init__(self, path: Path, folder: Path, console: Console) -> None:
        self.path, self.folder, self.console = path, folder, console
        self.said = False

    def opened(self) -> ImageFile | None:
        """The file, unless it is missing or damaged."""
        try:
            return ImageFile(self.path, self.repair)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            self._say("decoding all images again")
            return None

    def current(self, listing: list[File]) -> ImageFile | None:
        """The file, if it holds what the folder holds."""
        found = self.opened()
        return None if found is None or found.facts.files != listing or _any_readable(self.folder, found) else found

    def repair(self, paths: Sequence[str], shape: Sequence[int]) -> NDArray[np.uint8]:
        """Decode images again whose pixels are damaged."""
        self._say("decoding the damaged images again")
        return read_images([os.path.join(self.folder, path) for path in paths], shape)[0]

    def _say(self, remedy: str) -> None:
        """Once: damage seldom comes alone."""
        if not self.said:
            say(self.console, f"the decoded copy {self.path} is damaged: {remedy}")
        self.said = True


def _any_readable(folder: Path, old: ImageFile) -> bool:
    """Whether a file that was unreadable can be read now, for example after a disk or permission was restored."""
    for name in old.facts.errors:
        try:
            read_image(folder / name, *old.shape[1:])
            return True
        except Unreadable:
            continue
    return False


def _place(folder: Path, size: str | int) -> Path:
    key = json.dumps([VERSION, os.fspath(folder.resolve()), size])
    return home() / "images" / f"{folder.resolve().name}-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"


@contextmanager
def _locked(path: Path, console: Console) -> Iterator[None]:
    """One process at a time writes a copy; the others wait, and then use it."""
    try:
        folder = home() / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(folder / f"{path.name}.lock", "decoding the same images", console):
            yield
    except OSError as error:
        raise UserError(
            f"cannot keep the decoded images in {path.parent}: {error.strerror}; "
            "set COTRAIN_HOME to a folder with room for them"
        ) from error


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A file of another name that gets its own when all went well. Those of killed processes are deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    part, descriptor = new_file(path)
    os.close(descriptor)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class Decoding:
    """Decodes the files in `listing` into the file `part`."""

    part: Path
    workers: Workers
    folder: Path
    listing: list[File]
    console: Console

    def facts(self, size: str | int, old: ImageFile | None) -> dict[str, Any]:
        """Decode everything and return the facts about the images."""
        known = self._known(old)
        headers: list[Any] = [known[row].header if row in known else None for row in range(len(self.listing))]
        for row, header in self._answers(
            [row for row, header in enumerate(headers) if header is None], "reading headers of"
        ):
            headers[row] = header
        height, width, channels = shape = _choose_shape([header for header in headers if "error" not in header], size)

        _make_room(self.part, len(self.listing) * height * width * channels)
        hashes = [0] * len(self.listing)
        errors = {self.listing[row][0]: header["error"] for row, header in enumerate(headers) if "error" in header}
        if old is None or tuple(old.shape[1:]) != shape:
            known = {}
        else:
            _copy(old, {row: earlier.row for row, earlier in known.items()}, self.part)
        for row, earlier in known.items():
            hashes[row] = earlier.hash
        rest = [row for row, header in enumerate(headers) if row not in known and "error" not in header]
        for row, answer in self._answers(rest, "decoding", into=str(self.part), shape=shape):
            if isinstance(answer, int):
                hashes[row] = answer
            else:
                errors[self.listing[row][0]] = answer["error"]
        return {
            "shape": [len(self.listing), *shape],
            "files": self.listing,
            "headers": headers,
            "hashes": hashes,
            "errors": dict(sorted(errors.items())),
        }

    def _known(self, old: ImageFile | None) -> dict[int, Known]:
        if old is None:
            return {}
        facts = old.facts
        before = {
            file: Known(row, facts.headers[row], facts.hashes[row])
            for row, file in enumerate(facts.files)
            if file[0] not in facts.errors
        }
        return {row: before[file] for row, file in enumerate(self.listing) if file in before}

    def _answers(self, rows: list[int], what: str, **task: Any) -> Iterator[tuple[int, Any]]:
        """The workers' answer for each of these rows."""
        tasks = [
            {"paths": [os.path.join(self.folder, self.listing[row][0]) for row in some], "rows": some, **task}
            for some in in_parts(rows, FILES_PER_TASK)
        ]
        each = (answer for several in self.workers.map(tasks) for answer in several)
        yield from counted(zip(rows, each, strict=True), len(rows), f"{what} images", self.console)


def _choose_shape(headers: list[Header], size: str | int) -> tuple[int, int, int]:
    """Height and width as requested, or chosen to suit the images; one channel if all images are grey."""
    channels = 1 if headers and all(mode in GREY for _, _, mode in headers) else 3
    if isinstance(size, str):
        height, width = map(int, size.split("x"))
        return height, width, channels
    sizes = {(height, width) for height, width, _ in headers}
    if len(sizes) == 1 and max(*(only := sizes.pop())) <= LARGEST_KEPT:
        return *only, channels
    largest = min(size, LARGEST_GREY) if channels == 1 else size
    side = min([largest, *([round(median(min(height, width) for height, width, _ in headers))] if headers else [])])
    return side, side, channels


def _make_room(part: Path, size: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < size:
        raise UserError(
            f"the decoded images need {size / 1e9:.1f} GB, but {part.parent} has only {free / 1e9:.1f} GB left; "
            "set COTRAIN_HOME to a folder with enough space, or choose a smaller --size"
        )
    with open(part, "r+b") as file:
        if sys.platform == "linux":  # elsewhere a disk that another program fills is noticed only while writing
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
        file.truncate(size)


def _copy(old: ImageFile, earlier: dict[int, int], part: Path) -> None:
    with open(part, "r+b", buffering=0) as file:
        for rows in in_parts(list(earlier), 1024):
            images = old[[earlier[row] for row in rows]].numpy()
            for row, image in zip(rows, images, strict=True):
                file.seek(row * image.nbytes)
                file.write(np.ascontiguousarray(image).data)
