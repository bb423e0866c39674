"""The images of a session. People, files and events name an image by its path; arrays and requests by its row."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cotrain.labelling.served_images import NotShown
from cotrain.storage.cells import is_text

V = TypeVar("V")


class ImageIndex:
    """Everything else knows an image either by its path or by its row; only this class knows both."""

    def __init__(self, paths: Sequence[str], labelled: NDArray[np.int64]) -> None:
        """`labelled` are the rows that can be labelled, if their paths are text."""
        self.paths = paths
        self.rows = np.array([row for row in labelled.tolist() if is_text(paths[row])], np.int64)
        self._row_of = {paths[row]: row for row in self.rows.tolist()}

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, image: str) -> bool:
        """Whether the image can be labelled."""
        return image in self._row_of

    def image(self, row: int) -> str:
        """The image of a request."""
        if row >= len(self.paths) or self.paths[row] not in self._row_of:
            raise NotShown(f"there is no image {row}")
        return self.paths[row]

    def images(self, rows: Iterable[int]) -> list[str]:
        """The images of a request that may name others too."""
        return [self.paths[row] for row in rows if row < len(self.paths) and self.paths[row] in self._row_of]

    def row(self, image: str) -> int:
        return self._row_of[image]

    def by_row(self, values: Mapping[str, V]) -> dict[int, V]:
        """The same values by row, without images that cannot be labelled here."""
        return {self._row_of[image]: value for image, value in values.items() if image in self._row_of}

    def among(self, images: Iterable[str]) -> list[str]:
        """Those that can be labelled here."""
        return [image for image in images if image in self._row_of]
