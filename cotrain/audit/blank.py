"""Images that show nothing."""

import numpy as np
from numpy.typing import NDArray

from cotrain.data.dataset import Dataset

AT_ONCE = 512  # images in memory
FLAT = 2.0  # standard deviation of the pixels of a blank image, at most, of 255
TINY = 16  # pixels: the shorter side of a file that is too small to show much


def blank_images(dataset: Dataset, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows whose pixels are almost all the same."""
    found = [rows[:0]]
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        pixels = dataset.kind.pixels[part].numpy()
        spread = pixels.std(axis=(1, 2), dtype=np.float32).max(axis=-1)  # of the channel that varies most
        found.append(part[spread <= FLAT])
    return np.concatenate(found)


def tiny_files(dataset: Dataset) -> int:
    """How many files are tiny."""
    return sum(count for (height, width, _), count in dataset.sizes.items() if min(height, width) < TINY)
