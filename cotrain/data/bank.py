"""A bank: the features of every image in a few fixed views, computed once by a frozen trunk and read during training.

It is a folder with one file of rows per view (`plain`, `weak-0`, ..., `strong-0`, ...). Their keys are the content
hashes of images, so a bank serves all datasets that share images. `trunk/building.py` fills it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PLAIN = "plain"

Read = Callable[[str, NDArray[np.int64]], NDArray[np.float16]]  # view, rows of the dataset -> features


def view_names(weak: int, strong: int) -> list[str]:
    return [PLAIN, *(f"weak-{number}" for number in range(weak)), *(f"strong-{number}" for number in range(strong))]


@dataclass(frozen=True)
class Bank:
    """The features of a dataset's images; rows are rows of that dataset."""

    folder: Path
    images: NDArray[np.uint64]  # the hash of each image of the dataset
    shape: tuple[int, int, int]  # channels, height and width of the features
    weak: int  # views of each training image
    strong: int
    read: Read
    trunk: str = ""  # identifies the weights of the trunk that computed the features

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
        return self.read(name, rows).astype(np.float32)


def choose_views(views: int, images: int, available: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(views, images) numbers of views, all different for each image if there are enough."""
    if views > available:
        return rng.integers(available, size=(views, images))
    order = rng.random((available, images)).argsort(axis=0)
    return order[:views]
