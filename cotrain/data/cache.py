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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cotrain.data import decode
from cotrain.data.decode import GREY, Unreadable, read_image, read_images
from cotrain.data.imagefacts import UNREADABLE, Facts, Header, joined
from cotrain.data.imagefile import ImageFile, append_facts
from cotrain.data.workers import FILES_PER_TASK, Listing, Workers, in_parts, worker_count
from cotrain.progress import counted, needed_and_free, say
from cotrain.storage.location import home, one_at_a_time
from cotrain.storage.writing import LONGEST, new_file, remove_abandoned, replace_file
from cotrain.types import UserError

VERSION = 4
LARGEST_KEPT = 96  # images that all share one size keep it, up to this side
LARGEST_GREY = 64

UNKNOWN = -2  # in the place of a header that has not been read


def decoded(folder: Path, listing: Listing, size: str | int, console: Console) -> ImageFile:
    """The images of `listing`, in order, as one file. Only files that changed since the last time are decoded again.

    `size` is HEIGHTxWIDTH, or the largest side of a size to choose. An unreadable file becomes a row of zeros;
    `facts.errors` holds the reason.
    """
    copy = Copy(_place(folder, size), folder, console)
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

    def current(self, listing: Listing) -> ImageFile | None:
        """The file, if it holds what the folder holds."""
        found = self.opened()
        if found is None or not np.array_equal(found.facts.stamps, listing.stamps):
            return None
        return None if found.facts.names != joined(listing.paths) or _any_readable(self.folder, found) else found

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
    key = json.dumps([VERSION, decode.DRAFT, os.fspath(folder.resolve()), size])
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    return home() / "images" / f"{folder.resolve().name[:LONGEST]}-{digest}"


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
        replace_file(part, path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True)
class Decoding:
    """Decodes the files in `listing` into the file `part`."""

    part: Path
    workers: Workers
    folder: Path
    listing: Listing
    console: Console

    def facts(self, size: str | int, old: ImageFile | None) -> Facts:
        """Decode everything and return the facts about the images."""
        kinds, headers, earlier = self._known(old)
        errors: dict[str, str] = {}
        for row, header in self._answers(np.flatnonzero(headers == UNKNOWN), "reading headers of"):
            if "error" in header:
                errors[self.listing.paths[row]] = header["error"]
                headers[row] = UNREADABLE
            else:
                headers[row] = kinds.setdefault(tuple(header), len(kinds))
        counts = np.bincount(headers[headers != UNREADABLE], minlength=len(kinds))
        height, width, channels = _choose_shape(list(kinds), counts, size)

        _make_room(self.part, len(self.listing) * height * width * channels)
        hashes = np.zeros(len(self.listing), np.uint64)
        if old is None or tuple(old.shape[1:]) != (height, width, channels):
            earlier[:] = UNKNOWN
        else:
            here = np.flatnonzero(earlier != UNKNOWN)
            _copy(old, here, earlier[here], self.part)
            hashes[here] = old.hashes[earlier[here]]
        rest = np.flatnonzero((earlier == UNKNOWN) & (headers != UNREADABLE))
        for row, answer in self._answers(rest, "decoding", into=str(self.part), shape=(height, width, channels)):
            if isinstance(answer, int):
                hashes[row] = answer
            else:
                errors[self.listing.paths[row]] = answer["error"]
        return Facts(
            shape=(len(self.listing), height, width, channels),
            names=joined(self.listing.paths),
            stamps=self.listing.stamps,
            kinds=list(kinds),
            headers=headers,
            hashes=hashes,
            errors=dict(sorted(errors.items())),
        )

    def _known(self, old: ImageFile | None) -> tuple[dict[Header, int], NDArray[np.int32], NDArray[np.int64]]:
        """The kinds of headers, the header of each file, and its row in an earlier copy if it has not changed since."""
        headers = np.full(len(self.listing), UNKNOWN, np.int32)
        earlier = np.full(len(self.listing), UNKNOWN, np.int64)
        if old is None:
            return {}, headers, earlier
        facts = old.facts
        before = {path: row for row, path in enumerate(facts.paths) if path not in facts.errors}
        for row, path in enumerate(self.listing.paths):
            earlier[row] = before.get(path, UNKNOWN)
        found = np.flatnonzero(earlier != UNKNOWN)
        earlier[found[(self.listing.stamps[found] != facts.stamps[earlier[found]]).any(axis=1)]] = UNKNOWN
        same = np.flatnonzero(earlier != UNKNOWN)
        headers[same] = facts.headers[earlier[same]]
        return {kind: number for number, kind in enumerate(facts.kinds)}, headers, earlier

    def _answers(self, rows: NDArray[np.int64], what: str, **task: Any) -> Iterator[tuple[int, Any]]:
        """The workers' answer for each of these rows."""
        parts = [*in_parts(rows, FILES_PER_TASK)]
        tasks = ({"paths": [self._full(row) for row in some], "rows": some.tolist(), **task} for some in parts)
        each = (answer for several in self.workers.map(tasks) for answer in several)
        numbers = (row for some in parts for row in some.tolist())
        yield from counted(zip(numbers, each, strict=True), len(rows), f"{what} images", self.console)

    def _full(self, row: int) -> str:
        return os.path.join(self.folder, self.listing.paths[row])


def _choose_shape(kinds: Sequence[Header], counts: NDArray[np.int64], size: str | int) -> tuple[int, int, int]:
    """Height and width as requested, or chosen to suit the images; one channel if all images are grey."""
    used = [(*kind, count) for kind, count in zip(kinds, counts.tolist(), strict=True) if count]
    channels = 1 if used and all(mode in GREY for _, _, mode, _ in used) else 3
    if isinstance(size, str):
        height, width = map(int, size.split("x"))
        return height, width, channels
    sizes = {(height, width) for height, width, _, _ in used}
    if len(sizes) == 1 and max(*(only := sizes.pop())) <= LARGEST_KEPT:
        return *only, channels
    largest = min(size, LARGEST_GREY) if channels == 1 else size
    sides = np.repeat([min(height, width) for height, width, _, _ in used], [count for *_, count in used])
    side = min(largest, round(float(np.median(sides)))) if used else largest
    return side, side, channels


def _make_room(part: Path, size: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < size:
        needed, left = needed_and_free(size, free)
        raise UserError(
            f"the decoded images need {needed}, but {part.parent} has only {left} left; "
            "set COTRAIN_HOME to a folder with enough space, or choose a smaller --size"
        )
    with open(part, "r+b") as file:
        if sys.platform == "linux":  # elsewhere a disk that another program fills is noticed only while writing
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
        file.truncate(size)


def _copy(old: ImageFile, rows: NDArray[np.int64], earlier: NDArray[np.int64], part: Path) -> None:
    """Copy images from their earlier rows."""
    with open(part, "r+b", buffering=0) as file:
        for here, before in zip(in_parts(rows, 1024), in_parts(earlier, 1024), strict=True):
            for row, image in zip(here.tolist(), old[before].numpy(), strict=True):
                file.seek(row * image.nbytes)
                file.write(np.ascontiguousarray(image).data)
