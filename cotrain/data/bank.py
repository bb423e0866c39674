"""A bank: the features of every image in a few fixed views, computed once by a frozen trunk and read during training.

It is a folder with one file per view (`plain`, `weak-0`, ..., `strong-0`, ...). Row i of each file belongs to the image
whose content hash is row i of `hashes`, so a bank serves all datasets that share images. `features/building.py` fills
it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PLAIN = "plain"

Check = Callable[[str, NDArray[np.int64]], None]  # makes sure that these rows of a view are what was computed


def view_names(weak: int, strong: int) -> list[str]:
    return [PLAIN, *(f"weak-{number}" for number in range(weak)), *(f"strong-{number}" for number in range(strong))]


@dataclass(frozen=True)
class Bank:
    """The features of a dataset's images; rows are rows of that dataset."""

    folder: Path
    places: NDArray[np.int64]  # dataset row -> row of the files; -1: not in the bank
    shape: tuple[int, int, int]  # channels, height and width of the features
    weak: int  # views of each training image
    strong: int
    trunk: str = ""  # identifies the weights of the trunk that computed the features
    check: Check = lambda name, rows: None

    def plain(self, rows: NDArray[np.int64]) -> Tensor:
        """(n, C, h, w) features of the images as they are."""
        return torch.from_numpy(self._features(PLAIN, rows))

    def views(self, kind: str, rows: NDArray[np.int64], chosen: NDArray[np.int64]) -> Tensor:
        """(n, C, h, w) features of weak or strong views; `chosen` (n,) says which one of each image."""
        found = np.empty((len(rows), *self.shape), np.float32)
        for number in np.unique(chosen):
            these = np.flatnonzero(chosen == number)
            found[these] = self._features(f"{kind}-{number}", rows[these])
        return torch.from_numpy(found)

    def _features(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """By numpy: a thread prepares batches, and torch's own threads would disturb those of the step."""
        places = self.places[rows]
        assert (places >= 0).all()
        self.check(name, rows)
        return self._file(name)[places].astype(np.float32)

    def _file(self, name: str) -> NDArray[np.float16]:
        if name not in self._files:
            path = self.folder / name
            rows = path.stat().st_size // (2 * int(np.prod(self.shape)))
            self._files[name] = np.memmap(path, np.float16, "r", shape=(rows, *self.shape))
        return self._files[name]

    @cached_property
    def _files(self) -> dict[str, NDArray[np.float16]]:
        """Those that were needed so far."""
        return {}


def choose_views(views: int, images: int, available: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(views, images) numbers of views, all different for each image if there are enough."""
    if views > available:
        return rng.integers(available, size=(views, images))
    order = rng.random((available, images)).argsort(axis=0)
    return order[:views]
