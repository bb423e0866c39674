"""What can be computed again: rows of one type in a file, and whole files. What has a wrong digest is not there.

A row is missing until it was synced to disk, so a killed process loses what it wrote since the last `save`, and nothing
that is there is half written. Rows are compared with their digests when they are first read.
"""

import errno
import hashlib
import mmap
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cotrain.progress import needed_and_free
from cotrain.storage.writing import remove_abandoned, write_whole
from cotrain.types import UserError

INDEX = ".index"
RECORD = np.dtype([("key", "<u8"), ("digest", "<u8")])  # of a row; digest 0: it is missing
FILE_DIGEST = 16  # bytes
AT_ONCE = 1024  # rows

Digest = Callable[[NDArray[Any], int], int]  # of the content of a row and its key


class Damaged(UserError):
    """Some rows are not what was written."""


def keep(path: Path, content: bytes, whose: str) -> None:
    """Write a file that begins with its digest. `whose` says what it belongs to, so that no other file is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    write_whole(path, _file_digest(content, whose) + content)


def kept(path: Path, whose: str) -> bytes | None:
    """The content that `keep` wrote. A file with a wrong digest is deleted."""
    with suppress(OSError):
        content = path.read_bytes()
        if _file_digest(content[FILE_DIGEST:], whose) == content[:FILE_DIGEST]:
            return content[FILE_DIGEST:]
        path.unlink()
    return None


def _file_digest(content: bytes, whose: str) -> bytes:
    return hashlib.blake2b(content, digest_size=FILE_DIGEST, key=_salt(whose)).digest()


def _salt(whose: str) -> bytes:
    return hashlib.blake2b(whose.encode(errors="surrogatepass"), digest_size=16).digest()


def keyed(whose: str) -> Digest:
    """Digests that differ for rows of another key or another owner, which must not be taken for these."""
    salt = _salt(whose)

    def digest(row: NDArray[Any], key: int) -> int:
        content = hashlib.blake2b(row.data, digest_size=8, key=salt + key.to_bytes(8, "little"))
        return int.from_bytes(content.digest(), "little")

    return digest


class Rows:
    """PATH holds rows of one type, PATH.index the key and digest of each. A key keeps its place.

    With `mapped`, the file stays mapped between two reads, which is faster and lets its pages stay in memory. A file
    that is deleted while it is open stays readable, except on Windows, where it cannot be deleted.
    """

    def __init__(
        self, path: Path, dtype: DTypeLike, shape: Sequence[int], digest: Digest, *, mapped: bool = True
    ) -> None:
        self.path, self.index_path = path, path.with_name(path.name + INDEX)
        self.dtype, self.shape, self.digest, self.mapped = np.dtype(dtype), tuple(shape), digest, mapped
        self.row_bytes = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))
        self.lock, self.unsaved = Lock(), dict[int, int]()  # place -> digest
        self.files = dict[str, FileIO]()  # by mode
        self.close = weakref.finalize(self, _close, self.files)
        self.map: NDArray[Any] | None = None
        self._load()

    def _load(self) -> None:
        count = self.index_path.stat().st_size // RECORD.itemsize if self.index_path.exists() else 0
        self.index = np.asarray(
            np.memmap(self.index_path, RECORD, "r", shape=(count,)) if count else np.empty(0, RECORD)
        )
        self.checked = np.zeros(count, np.bool_)

    def __len__(self) -> int:
        """The number of rows that have a place."""
        return len(self.index)

    @property
    def keys(self) -> NDArray[np.uint64]:
        return self.index["key"]

    @property
    def digests(self) -> NDArray[np.uint64]:
        """0 for rows that are missing."""
        digests = np.array(self.index["digest"])
        digests[self._written() :] = 0
        return digests

    def places(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Where the rows of these keys are; -1: they have no place."""
        if not len(self):
            return np.full(len(keys), -1)
        known = np.ascontiguousarray(self.keys)
        order = np.argsort(known, kind="stable")
        found = order[np.searchsorted(known, keys, sorter=order).clip(max=len(order) - 1)]
        return np.where(known[found] == keys, found, -1)

    def add(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The places of these keys. New ones follow the others in the order given."""
        new = keys[self.places(keys) < 0]
        if len(new):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _, first = np.unique(new, return_index=True)
            records = np.zeros(len(first), RECORD)
            records["key"] = new[np.sort(first)]
            self.forget(np.arange(self._written(), len(self)))  # the file will grow over them
            with open(self.index_path, "ab") as file:
                file.truncate(RECORD.itemsize * len(self))
                file.write(records.tobytes())
            self._load()
        return self.places(keys)

    def write(self, places: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Write rows; `save` makes them count. Several threads may write."""
        values = np.ascontiguousarray(values, self.dtype)
        digests = [self.digest(row, key) for row, key in zip(values, self.keys[places].tolist(), strict=True)]
        with self.lock:
            file = self._file("r+b")
            for place, row in zip(places.tolist(), values, strict=True):
                file.seek(place * self.row_bytes)
                if file.write(row.tobytes()) != self.row_bytes:  # as much as the disk took
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.unsaved.update(zip(places.tolist(), digests, strict=True))

    def written(self, place: int, digest: int) -> None:
        """Another process has written this row."""
        self.unsaved[place] = digest

    def save(self) -> None:
        """Sync what was written. Only then it is there."""
        with self.lock:
            unsaved, self.unsaved = self.unsaved, {}
        if unsaved:
            os.fsync(self._file("r+b").fileno())
            self._mark(unsaved)

    def forget(self, places: NDArray[np.int64]) -> None:
        if len(places):
            self._mark(dict.fromkeys(places.tolist(), 0))

    def _mark(self, digests: dict[int, int]) -> None:
        places = np.fromiter(digests, np.int64)
        first = int(places.min())
        records = np.array(self.index[first : int(places.max()) + 1])
        records["digest"][places - first] = np.fromiter(digests.values(), np.uint64)
        with open(self.index_path, "r+b") as file:
            file.seek(first * RECORD.itemsize)
            file.write(records.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def read(self, places: ArrayLike) -> NDArray[Any]:
        """Rows as a copy. `Damaged`: some of them are missing or wrong."""
        places = np.asarray(places)
        values = self._whole(places)
        if len(new := np.flatnonzero(~self.checked[places])):
            if self._wrong(places[new], values[new]).any():
                raise self._damage()
            self.checked[places[new]] = True
        return values

    def all(self) -> NDArray[Any]:
        """All rows, as a map of the file that can be changed without changing the file."""
        values = self._map(mmap.ACCESS_COPY)
        for start in range(0, len(self), AT_ONCE):
            part = np.arange(start, min(start + AT_ONCE, len(self)))
            if len(values) < len(self) or self._wrong(part, values[start : start + AT_ONCE]).any():
                raise self._damage()
        return values[: len(self)]

    def drop_damaged(self) -> NDArray[np.int64]:
        """Forget all rows that are not what was written: damage seldom comes alone. Returns their places."""
        there = np.flatnonzero(self.digests)
        parts = [there[start : start + AT_ONCE] for start in range(0, len(there), AT_ONCE)]
        wrong = np.concatenate([there[:0], *(part[self._wrong(part, self._whole(part))] for part in parts)])
        self.forget(wrong)
        return wrong

    def _wrong(self, places: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.bool_]:
        keys, expected, digest = self.keys[places].tolist(), self.index["digest"][places], self.digest
        found = np.fromiter(map(digest, np.ascontiguousarray(values), keys), np.uint64, len(keys))
        return (found != expected) | (expected == 0)

    def _whole(self, places: NDArray[np.int64]) -> NDArray[Any]:
        values = self._read_map()
        if len(places) and not 0 <= places.min() <= places.max() < min(len(self), len(values)):
            raise self._damage()
        return values[places]

    def _read_map(self) -> NDArray[Any]:
        if self.map is not None and len(self.map) >= len(self):
            return self.map
        found = self._map(mmap.ACCESS_COPY)
        self.map = found if self.mapped else None
        return found

    def _map(self, access: int) -> NDArray[Any]:
        if not (count := self._written()):
            return np.empty((0, *self.shape), self.dtype)
        content = mmap.mmap(self._file("rb").fileno(), 0, access=access)
        return np.ndarray((count, *self.shape), self.dtype, content)

    def _written(self) -> int:
        """The rows that the file has room for, whether or not they are there."""
        try:
            return os.fstat(self._file("rb").fileno()).st_size // self.row_bytes
        except FileNotFoundError:
            return 0

    def _file(self, mode: str) -> FileIO:
        if mode not in self.files:
            if mode != "rb":
                self.path.touch()
            self.files[mode] = FileIO(self.path, mode)
        return self.files[mode]

    def _damage(self) -> Damaged:
        return Damaged(f"{self.path} is damaged; delete it, and it will be computed again")

    def reserve(self) -> None:
        """Take the disk space of all rows."""
        wanted, file = len(self) * self.row_bytes, self._file("r+b")
        if self.lacking:
            if sys.platform == "linux":  # elsewhere a disk that another program fills is noticed only while writing
                os.posix_fallocate(file.fileno(), 0, wanted)
            else:
                file.truncate(wanted)

    @property
    def lacking(self) -> int:
        """Bytes by which the file has to grow."""
        return max(0, len(self) * self.row_bytes - (self.path.stat().st_size if self.path.exists() else 0))

    def delete(self) -> None:
        self.close()
        for path in (self.path, self.index_path):
            path.unlink(missing_ok=True)


def _close(files: dict[str, FileIO]) -> None:
    for file in files.values():
        file.close()
    files.clear()


def reserve(several: Sequence[Rows], what: str, fewer: str) -> None:
    """Take the disk space of all rows, so that a full disk is noticed before the work."""
    lacking, folder = sum(rows.lacking for rows in several), several[0].path.parent
    free = shutil.disk_usage(folder).free
    if lacking > free:
        needed, left = needed_and_free(lacking, free)
        raise UserError(
            f"{what} need {needed}, but {folder} has only {left} left; "
            f"set COTRAIN_HOME to a folder with enough space, or {fewer}"
        )
    for rows in several:
        rows.reserve()
