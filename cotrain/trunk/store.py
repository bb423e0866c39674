"""The folder of a bank while it is filled: which images and views it holds, and how features are added.

Features are synced to disk before they are marked as done, so a killed process loses a few seconds of work and nothing
that is marked is half written. The mark of a row is a checksum of its features, so damage is noticed later.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotrain.progress import needed_and_free
from cotrain.storage.reading import parse_json, read_bytes
from cotrain.storage.writing import remove_abandoned, write_json
from cotrain.types import UserError

HASHES, FACTS, SUMS = "hashes", "facts.json", ".sums"
SUM = 8  # bytes of a checksum


def checksum(features: NDArray[np.generic], image: int) -> int:
    """Of the features of one image in one view; with the hash of the image, which must not get those of another."""
    content, key = np.ascontiguousarray(features).data, int(image).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=SUM, key=key).digest(), "little")


class Store:
    """Rows of float16 features, one file per view, and a checksum per row, which is 0 until the row is done."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Open the folder, or create it. `facts` describe what made the features; `shape` is that of one row."""
        self.folder, self.shape = folder, tuple(facts["shape"])
        self.row_bytes = 2 * int(np.prod(self.shape))
        self.lock, self.open_files = Lock(), dict[str, FileIO]()
        self.unmarked: dict[str, dict[int, int]] = {}  # view -> row -> checksum
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FACTS
        remove_abandoned(folder)
        if not path.exists():
            write_json(path, facts)
        if not self._describes(path, facts):
            self._start_again(path, facts)
        self.hashes = self._read_hashes()

    @staticmethod
    def _describes(path: Path, facts: Mapping[str, Any]) -> bool:
        try:
            return bool(parse_json(read_bytes(path)) == json.loads(json.dumps(facts)))
        except ValueError:
            return False

    def _start_again(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Of damaged facts, nobody knows what the features beside them are: no row is done any more."""
        for marks in self.folder.glob(f"*{SUMS}"):
            self._cut(marks, 0)
        write_json(path, facts)

    def _read_hashes(self) -> NDArray[np.uint64]:
        path = self.folder / HASHES
        whole = path.stat().st_size // 8 if path.exists() else 0  # a killed process may have written half a hash
        return np.fromfile(path, np.uint64, whole) if whole else np.zeros(0, np.uint64)

    def places(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The rows of these images; -1 for images that are not here."""
        if not len(self.hashes):
            return np.full(len(hashes), -1)
        order = np.argsort(self.hashes, kind="stable")
        found = order[np.searchsorted(self.hashes[order], hashes).clip(max=len(order) - 1)]
        return np.where(self.hashes[found] == hashes, found, -1)

    def add_images(self, hashes: NDArray[np.uint64]) -> None:
        """Append the images that are not here yet."""
        new = np.setdiff1d(hashes, self.hashes)
        if not len(new):
            return
        for path in self.folder.glob(f"*{SUMS}"):  # marks of rows whose hashes were lost are not those of new images
            self._cut(path, len(self.hashes))
        with open(self.folder / HASHES, "r+b" if len(self.hashes) else "wb") as file:
            file.truncate(8 * len(self.hashes))
            file.seek(0, os.SEEK_END)
            file.write(new.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.hashes = np.concatenate([self.hashes, new])

    def done(self, name: str) -> NDArray[np.bool_]:
        """Which rows of a view are there."""
        return self._sums(name) != 0

    def damaged(self, name: str, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows of a view are not what was written."""
        marks, found = self.folder / f"{name}{SUMS}", np.ones(len(places), np.bool_)
        marked = marks.stat().st_size // SUM if marks.exists() else 0
        if rows := min(self._whole_rows(name), marked, len(self.hashes)):
            features = np.memmap(self.folder / name, np.uint8, "r", shape=(rows, self.row_bytes))
            sums = np.memmap(marks, np.uint64, "r", shape=(rows,))
            for number, row in enumerate(places.tolist()):
                found[number] = row >= rows or checksum(features[row], self.hashes[row]) != sums[row]
        return found

    def forget(self, name: str, places: NDArray[np.int64]) -> None:
        """These rows of a view are not done any more."""
        if len(places):
            self._write_sums(name, dict.fromkeys(places.tolist(), 0))

    def _sums(self, name: str) -> NDArray[np.uint64]:
        """The checksum of every row of a view; 0 for those that are not there."""
        sums = np.zeros(len(self.hashes), np.uint64)
        path = self.folder / f"{name}{SUMS}"
        if path.exists():
            stored = np.fromfile(path, np.uint64)[: min(len(sums), self._whole_rows(name))]
            sums[: len(stored)] = stored
        return sums

    def make_room(self, names: Sequence[str]) -> None:
        """Reserve the disk space for all rows of these views, so that a full disk is noticed before the work."""
        wanted = len(self.hashes) * self.row_bytes
        grows = sum(max(0, wanted - self._size(name)) for name in names)
        free = shutil.disk_usage(self.folder).free
        if grows > free:
            needed, left = needed_and_free(grows, free)
            raise UserError(
                f"the features need {needed}, but {self.folder} has only {left} left; "
                "set COTRAIN_HOME to a folder with enough space, or use fewer --views"
            )
        for name in names:
            marks = self.folder / f"{name}{SUMS}"
            marks.touch()
            self._cut(marks, self._whole_rows(name))
            file = self._file(name)
            if sys.platform == "linux" and wanted > self._size(name):
                os.posix_fallocate(file.fileno(), 0, wanted)
            elif wanted > self._size(name):
                file.truncate(wanted)

    @staticmethod
    def _cut(marks: Path, rows: int) -> None:
        """Drop the marks after these rows, so that only what is there is marked."""
        if marks.stat().st_size > SUM * rows:
            os.truncate(marks, SUM * rows)

    def _size(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def _whole_rows(self, name: str) -> int:
        return self._size(name) // self.row_bytes

    def _file(self, name: str) -> FileIO:
        if name not in self.open_files:
            path = self.folder / name
            path.touch()
            self.open_files[name] = open(path, "r+b", buffering=0)  # noqa: SIM115
        return self.open_files[name]

    def write(self, name: str, rows: NDArray[np.int64], features: NDArray[np.float16]) -> None:
        """Write rows of one view; `mark` makes them count."""
        file = self._file(name)
        sums = {row: checksum(values, self.hashes[row]) for row, values in zip(rows.tolist(), features, strict=True)}
        with self.lock:
            for row, values in zip(rows.tolist(), np.ascontiguousarray(features), strict=True):
                file.seek(row * self.row_bytes)
                if file.write(values.tobytes()) != self.row_bytes:  # as much as the disk took
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.unmarked.setdefault(name, {}).update(sums)

    def mark(self) -> None:
        """Sync what was written, then mark it as done."""
        with self.lock:
            written, self.unmarked = self.unmarked, {}
        for name, sums in written.items():
            os.fsync(self.open_files[name].fileno())
            self._write_sums(name, sums)

    def _write_sums(self, name: str, sums: Mapping[int, int]) -> None:
        with open(self.folder / f"{name}{SUMS}", "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(bytes(max(0, SUM * len(self.hashes) - file.tell())))
            for row, value in sums.items():
                file.seek(SUM * row)
                file.write(value.to_bytes(SUM, "little"))
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self.open_files.values():
            file.close()
        self.open_files.clear()
