"""Many images of one size in one file: written once, opened immediately, and read a few rows at a time.

The file holds the pixels of all images, then a JSON object with facts about them, then the length of that object in 8
bytes.
"""

import json
import mmap
import os
import weakref
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

LENGTH = 8


class ImageFile:
    """(N, h, w, c) uint8 images on disk; `file[rows]` is a tensor of those rows.

    Every read maps the file again, so that the pages it touched do not stay in memory.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError or ValueError if the file is missing or incomplete."""
        self.path = path
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115
        # Kept open: on Unix the images stay readable when another process replaces the file.
        self.close = weakref.finalize(self, self.file.close)
        end = os.fstat(self.file.fileno()).st_size - LENGTH
        length = int.from_bytes(_read(self.file, max(end, 0), LENGTH), "little")
        if not 0 < length <= end:
            raise ValueError(f"{path} is not a complete image file")
        self.facts: dict[str, Any] = json.loads(_read(self.file, end - length, length))
        self.shape: tuple[int, int, int, int] = tuple(self.facts["shape"])
        if self.bytes != end - length:
            raise ValueError(f"{path} is not a complete image file")

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: ArrayLike) -> Tensor:
        return torch.from_numpy(self._mapped()[np.asarray(rows)])

    def resident(self) -> Tensor:
        """All images as one tensor; the system loads them as they are used."""
        return torch.from_numpy(self._mapped())

    def _mapped(self) -> NDArray[np.uint8]:
        return np.ndarray(self.shape, np.uint8, mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_COPY))


def _read(file: FileIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


def append_facts(path: Path, facts: dict[str, Any]) -> None:
    """Complete a file that holds all pixels; `facts` includes their shape."""
    text = json.dumps(facts).encode()
    with open(path, "ab") as file:
        file.write(text + len(text).to_bytes(LENGTH, "little"))
        file.flush()
        os.fsync(file.fileno())
