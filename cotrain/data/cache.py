"""A cache of decoded folders: all images of a folder, resized, in a file that later runs open immediately."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cotrain.data import decode
from cotrain.data.decode import GREY, Unreadable, content_hash, read_image, read_images
from cotrain.data.imagefacts import UNREADABLE, Facts, Header, joined, unpacked
from cotrain.data.imagefile import ImageFile, image_rows
from cotrain.data.workers import FILES_PER_TASK, Listing, Workers, in_parts, worker_count
from cotrain.progress import counted, say
from cotrain.storage.location import home, one_at_a_time
from cotrain.storage.rows import INDEX, Rows, keep, kept, reserve
from cotrain.storage.writing import LONGEST
from cotrain.types import UserError

VERSION = 5
LARGEST_KEPT = 96  # images that all share one size keep it, up to this side
LARGEST_GREY = 64

SAVE_SECONDS = 5.0  # the most that a kill loses
GARBAGE = 2  # a copy with more than so many rows per image is made anew
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
        with Workers(worker_count(len(listing))) as workers:
            facts = Decoding(copy, workers, listing, console).facts(size)
        keep(copy.facts_path, facts.packed(), copy.path.name)
        copy.remove_others(facts)
    return copy.images(facts)


@dataclass(frozen=True)
class Copy:
    """The decoded images of a folder: a file of facts, and the rows of pixels, named by their shape."""

    path: Path
    folder: Path
    console: Console

    @property
    def facts_path(self) -> Path:
        return self.path / "facts"

    def facts(self) -> Facts | None:
        content = kept(self.facts_path, self.path.name)
        with suppress(ValueError):
            return unpacked(content) if content is not None else None
        return None

    def rows(self, shape: Sequence[int]) -> Rows:
        return image_rows(self._pixels(shape), shape)

    def images(self, facts: Facts) -> ImageFile:
        def repair(paths: Sequence[str]) -> NDArray[np.uint8]:
            say(self.console, f"the decoded copy {self.path} is damaged: decoding {len(paths):,} images again")
            return read_images([os.path.join(self.folder, path) for path in paths], facts.shape[1:])[0]

        return ImageFile(self._pixels(facts.shape[1:]), facts, repair)

    def _pixels(self, shape: Sequence[int]) -> Path:
        return self.path / "x".join(map(str, shape))

    def current(self, listing: Listing) -> ImageFile | None:
        """The images, if they are what the folder holds."""
        facts = self.facts()
        if facts is None or not np.array_equal(facts.stamps, listing.stamps) or facts.names != joined(listing.paths):
            return None
        with suppress(OSError):
            found = self.images(facts)
            return found if found.is_whole and not _any_readable(self.folder, found) else None
        return None

    def remove_others(self, facts: Facts) -> None:
        """Files of images of an earlier size. On Windows, they stay while another process reads them."""
        pixels = self._pixels(facts.shape[1:]).name
        for path in self.path.iterdir():
            if path.name not in (self.facts_path.name, pixels, pixels + INDEX):
                with suppress(OSError):
                    path.unlink()


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


@dataclass(frozen=True)
class Decoding:
    """Decodes the files in `listing` that a copy lacks."""

    copy: Copy
    workers: Workers
    listing: Listing
    console: Console

    def facts(self, size: str | int) -> Facts:
        """Decode everything and return the facts about the images."""
        keys = _keys(self.listing.paths, self.listing.stamps)
        kinds, headers = self._known(keys)
        errors: dict[str, str] = {}
        for row, header in self._answers(np.flatnonzero(headers == UNKNOWN), "reading headers of"):
            if "error" in header:
                errors[self.listing.paths[row]] = header["error"]
                headers[row] = UNREADABLE
            else:
                headers[row] = kinds.setdefault(tuple(header), len(kinds))
        counts = np.bincount(headers[headers != UNREADABLE], minlength=len(kinds))
        shape = _choose_shape(list(kinds), counts, size)
        hashes = self._pixels(keys, shape, headers != UNREADABLE, errors)
        return Facts(
            shape=(len(self.listing), *shape),
            names=joined(self.listing.paths),
            stamps=self.listing.stamps,
            kinds=list(kinds),
            headers=headers,
            hashes=hashes,
            keys=keys,
            errors=dict(sorted(errors.items())),
        )

    def _known(self, keys: NDArray[np.uint64]) -> tuple[dict[Header, int], NDArray[np.int32]]:
        """The kinds of headers, and the header of each file that has not changed since the last time."""
        if (old := self.copy.facts()) is None or not len(old.keys):
            return {}, np.full(len(keys), UNKNOWN, np.int32)
        order = np.argsort(old.keys)
        before = order[np.searchsorted(old.keys, keys, sorter=order).clip(max=len(order) - 1)]
        same = (old.keys[before] == keys) & (old.headers[before] != UNREADABLE)
        return {kind: number for number, kind in enumerate(old.kinds)}, np.where(same, old.headers[before], UNKNOWN)

    def _pixels(
        self, keys: NDArray[np.uint64], shape: tuple[int, int, int], readable: NDArray[np.bool_], errors: dict[str, str]
    ) -> NDArray[np.uint64]:
        """Decode what is missing. Returns the hash of each image; 0: unreadable."""
        rows = self.copy.rows(shape)
        if len(rows) > GARBAGE * len(keys):  # most of it belongs to files that are gone
            with suppress(OSError):
                rows.delete()
            rows = self.copy.rows(shape)
        rows.drop_damaged()
        places = rows.add(keys)
        reserve([rows], "the decoded images", "choose a smaller --size")
        blank = np.zeros((1, *shape), np.uint8)
        hashes = rows.digests[places]
        hashes[hashes == content_hash(blank[0])] = 0  # black, or unreadable until now
        lacking, saved = np.flatnonzero((hashes == 0) & readable), time.monotonic()
        for row, answer in self._answers(lacking, "decoding", places, into=str(rows.path), shape=shape):
            if isinstance(answer, int):
                hashes[row] = answer
                rows.written(int(places[row]), answer)
            else:
                errors[self.listing.paths[row]] = answer["error"]
            if time.monotonic() - saved > SAVE_SECONDS:
                rows.save()
                saved = time.monotonic()
        for place in places[hashes == 0]:
            rows.write(np.array([place]), blank)
        rows.save()
        rows.close()
        return hashes

    def _answers(
        self, rows: NDArray[np.int64], what: str, places: NDArray[np.int64] | None = None, **task: Any
    ) -> Iterator[tuple[int, Any]]:
        """The workers' answer for each of these rows."""
        parts = [*in_parts(rows, FILES_PER_TASK)]
        numbers = parts if places is None else [places[some] for some in parts]
        tasks = (
            {"paths": [self._full(row) for row in some], "rows": where.tolist(), **task}
            for some, where in zip(parts, numbers, strict=True)
        )
        each = (answer for several in self.workers.map(tasks) for answer in several)
        known = zip((row for some in parts for row in some.tolist()), each, strict=True)
        yield from counted(known, len(rows), f"{what} images", self.console)

    def _full(self, row: int) -> str:
        return os.path.join(self.copy.folder, self.listing.paths[row])


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


def _keys(paths: Sequence[str], stamps: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Of files as they are: another path, size or time of change is another key."""

    def key(path: str, stamp: NDArray[np.int64]) -> bytes:
        return hashlib.blake2b(path.encode(errors="surrogateescape") + stamp.tobytes(), digest_size=8).digest()

    return np.frombuffer(b"".join(map(key, paths, np.ascontiguousarray(stamps))), np.uint64)
