"""Many images of one size in one file, opened immediately and read a few rows at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cotrain.data.decode import content_hash
from cotrain.data.imagefacts import Facts
from cotrain.storage.rows import Damaged, Rows
from cotrain.types import UserError

AT_ONCE = 1024  # images

Repair = Callable[[Sequence[str]], NDArray[np.uint8]]  # paths -> pixels, decoded again


def image_rows(path: Path, shape: Sequence[int]) -> Rows:
    """Images of this height, width and channels. Their digests are the hashes of their pixels."""
    return Rows(path, np.uint8, shape, _digest, mapped=False)


def _digest(image: NDArray[Any], key: int) -> int:
    return content_hash(image)


class ImageFile:
    """(N, h, w, c) uint8 images on disk; `file[rows]` is a tensor of those rows.

    Every read maps the file again, so that the pages it touched do not stay in memory.
    """

    def __init__(self, path: Path, facts: Facts, repair: Repair | None = None) -> None:
        """`repair` decodes missing and damaged images again; without it they are an error."""
        self.path, self.facts, self.repair = path, facts, repair
        self.shape = facts.shape
        self.rows = image_rows(path, self.shape[1:])
        self.hashes = facts.hashes if len(facts.hashes) else np.zeros(len(self), np.uint64)
        self.places = self.rows.places(facts.keys) if len(facts.keys) else np.arange(len(self))

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_whole(self) -> bool:
        """Whether the file holds the images that the facts say. Pixels are checked when they are first read."""
        if (self.places < 0).any():
            return False
        blank = content_hash(np.zeros(self.shape[1:], np.uint8))
        return np.array_equal(self.rows.digests[self.places], np.where(self.hashes == 0, blank, self.hashes))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: ArrayLike) -> Tensor:
        chosen = np.arange(len(self))[np.asarray(rows)]
        images = self._whole(lambda: self.rows.read(self.places[np.atleast_1d(chosen)]))
        return torch.from_numpy(images if chosen.ndim else images[0])

    def resident(self) -> Tensor:
        """All images as one tensor."""
        if len(self.rows) == len(self) and np.array_equal(self.places, np.arange(len(self))):
            return torch.from_numpy(self._whole(self.rows.all))
        images = torch.empty(self.shape, dtype=torch.uint8)
        for start in range(0, len(self), AT_ONCE):
            images[start : start + AT_ONCE] = self[np.arange(start, min(start + AT_ONCE, len(self)))]
        return images

    def _whole(self, read: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        try:
            return read()
        except Damaged:
            if self.repair is None:
                raise
            try:
                self._decode_again(self.repair)
            except OSError as error:
                raise UserError(f"{self.path} is damaged and cannot be written: {error.strerror}; delete it") from error
            return read()

    def _decode_again(self, repair: Repair) -> None:
        """All damaged images. One that is not what it was is for the next opening."""
        self.rows.drop_damaged()
        missing = np.flatnonzero(self.rows.digests[self.places] == 0)
        for start in range(0, len(missing), AT_ONCE):
            rows = missing[start : start + AT_ONCE]
            names = [self.facts.paths[row] for row in rows]
            images = repair(names)
            images[self.hashes[rows] == 0] = 0
            hashes = np.array([content_hash(image) for image in images], np.uint64)
            if (changed := np.flatnonzero((hashes != self.hashes[rows]) & (self.hashes[rows] != 0))).size:
                raise UserError(
                    f"{self.path} is damaged, and {names[changed[0]]} has changed since it was decoded; start again"
                )
            self.rows.write(self.places[rows], images)
        self.rows.save()


Images = Tensor | ImageFile  # images[rows] is a tensor for both
