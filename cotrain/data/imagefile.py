"""Many images of one size in one file: written once, opened immediately, and read a few rows at a time.

The file holds the pixels of all images, then the facts about them, then a digest of the facts and their length in 8
bytes. Pixels are compared with the images' hashes when they are first read.
"""

import hashlib
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cotrain.data.decode import content_hash
from cotrain.data.imagefacts import Facts, unpacked
from cotrain.types import UserError

DIGEST, LENGTH = 16, 8
AT_ONCE = 1024  # images that are checked at a time

Repair = Callable[[Sequence[str], Sequence[int]], NDArray[np.uint8]]  # paths, (h, w, c) -> pixels, decoded again


class ImageFile:
    """(N, h, w, c) uint8 images on disk; `file[rows]` is a tensor of those rows.

    Every read maps the file again, so that the pages it touched do not stay in memory.
    """

    def __init__(self, path: Path, repair: Repair | None = None) -> None:
        """Raises OSError or ValueError if the file is missing, incomplete or damaged.

        `repair` decodes damaged images again; without it they are an error.
        """
        self.path, self.repair = path, repair
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115
        # Kept open: on Unix the images stay readable when another process replaces the file.
        self.close = weakref.finalize(self, self.file.close)
        end = os.fstat(self.file.fileno()).st_size - LENGTH - DIGEST
        digest, length = _read(self.file, max(end, 0), DIGEST), int.from_bytes(self.file.read(LENGTH), "little")
        if not 0 < length <= end:
            raise ValueError(f"{path} is not a complete image file")
        facts = _read(self.file, end - length, length)
        if _digest(facts) != digest:
            raise ValueError(f"{path} is damaged")
        self.facts = unpacked(facts)
        self.shape = self.facts.shape
        if self.bytes != end - length:
            raise ValueError(f"{path} is not a complete image file")
        self.hashes = self.facts.hashes if len(self.facts.hashes) else np.zeros(len(self), np.uint64)
        self.checked = self.hashes == 0  # unreadable files have no pixels to check

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: ArrayLike) -> Tensor:
        chosen = np.arange(len(self))[np.asarray(rows)]
        images = self._mapped()[chosen]
        self._check(np.atleast_1d(chosen), images if chosen.ndim else images[None])
        return torch.from_numpy(images)

    def resident(self) -> Tensor:
        """All images as one tensor."""
        images = self._mapped()
        for start in range(0, len(self), AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, len(self)))
            self._check(rows, images[start : start + AT_ONCE])
        return torch.from_numpy(images)

    def _check(self, rows: NDArray[np.int64], images: NDArray[np.uint8]) -> None:
        """Check rows that are read for the first time, and replace those that are damaged."""
        new = np.flatnonzero(~self.checked[rows])
        damaged = [place for place in new if content_hash(images[place]) != self.hashes[rows[place]]]
        if damaged:
            images[damaged] = self._repaired(rows[damaged])
        self.checked[rows] = True

    def _repaired(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        paths = self.facts.paths
        names = [paths[row] if paths else f"row {row}" for row in rows]
        if self.repair is not None:
            images = self.repair(names, self.shape[1:])
            if all(content_hash(image) == self.hashes[row] for row, image in zip(rows, images, strict=True)):
                self._write(rows, images)
                return images
        raise UserError(f"the decoded copy {self.path} is damaged at {names[0]}; delete it to decode the images again")

    def _write(self, rows: NDArray[np.int64], images: NDArray[np.uint8]) -> None:
        """Put repaired rows in their places, unless the disk is read-only or another process replaced the file."""
        with suppress(OSError), open(self.path, "r+b", buffering=0) as file:
            if os.path.samestat(os.fstat(file.fileno()), os.fstat(self.file.fileno())):
                for row, image in zip(rows.tolist(), images, strict=True):
                    file.seek(row * image.nbytes)
                    file.write(np.ascontiguousarray(image).data)

    def _mapped(self) -> NDArray[np.uint8]:
        return np.ndarray(self.shape, np.uint8, mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_COPY))


def _read(file: FileIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


Images = Tensor | ImageFile  # images[rows] is a tensor for both


def _digest(facts: bytes) -> bytes:
    return hashlib.blake2b(facts, digest_size=DIGEST).digest()


def append_facts(path: Path, facts: Facts) -> None:
    """Complete a file that holds all pixels."""
    content = facts.packed()
    with open(path, "ab") as file:
        for part in (content, _digest(content), len(content).to_bytes(LENGTH, "little")):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
