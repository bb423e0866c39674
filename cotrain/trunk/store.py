"""The views of a dataset's images in a bank: one file of rows per view, by the hashes of the images."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotrain.storage.rows import Rows, keyed, reserve


class Store:
    def __init__(self, folder: Path, shape: Sequence[int], images: NDArray[np.uint64]) -> None:
        """`shape` is that of the features of an image, `images` are the hashes of the dataset's images."""
        self.folder, self.shape, self.images = folder, tuple(shape), images
        self.views = dict[str, Rows]()
        self.known = dict[str, NDArray[np.int64]]()  # view -> dataset row -> place; -1: not there

    def view(self, name: str) -> Rows:
        if name not in self.views:
            self.views[name] = Rows(self.folder / name, np.float16, self.shape, keyed(f"{self.folder.name}/{name}"))
        return self.views[name]

    def places(self, name: str) -> NDArray[np.int64]:
        if name not in self.known:
            keys = self.view(name).keys
            same = (self.known[other] for other in self.known if np.array_equal(self.view(other).keys, keys))
            self.known[name] = found if (found := next(same, None)) is not None else self.view(name).places(self.images)
        return self.known[name]

    def done(self, name: str) -> NDArray[np.bool_]:
        """Which images of the dataset have this view."""
        return np.append(self.view(name).digests != 0, False)[self.places(name)]

    def add(self, name: str, rows: NDArray[np.int64]) -> None:
        """Give these images of the dataset places in a view."""
        self.view(name).add(self.images[rows])
        self.known.pop(name, None)
        self.places(name)  # before several threads write

    def reserve(self, names: Sequence[str]) -> None:
        reserve([self.view(name) for name in names], "the features", "use fewer --views")

    def write(self, name: str, rows: NDArray[np.int64], features: NDArray[np.float16]) -> None:
        self.view(name).write(self.places(name)[rows], features)

    def save(self) -> None:
        for view in self.views.values():
            view.save()

    def read(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        places = self.places(name)[rows]
        return self.view(name).read(places)
