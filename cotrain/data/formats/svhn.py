"""SVHN, house numbers cropped to single digits: train_32x32.mat and test_32x32.mat from the official site."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotrain.data.dataset import Dataset, from_arrays
from cotrain.data.format import ArrayFormat
from cotrain.data.mat import read_mat
from cotrain.data.memory import check_room
from cotrain.storage.reading import reason
from cotrain.types import UserError

TRAIN, TEST, EXTRA = "train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"
COPIES = 2  # of all images in memory while their axes are moved


class Svhn(ArrayFormat):
    order = 40

    def recognises(self, source: str) -> bool:
        return is_svhn(Path(source))

    def load(self, source: str) -> Dataset:
        return load_svhn(Path(source))


def is_svhn(path: Path) -> bool:
    return (path / TRAIN).is_file() or (path / TEST).is_file()


def load_svhn(path: Path) -> Dataset:
    train, test = (_read(path / file) for file in (TRAIN, TEST))
    unused = f"; {EXTRA} is not used" if (path / EXTRA).is_file() else ""
    return from_arrays(
        *train,
        test=test,
        classes=tuple("0123456789"),
        name="svhn",
        source=str(path.resolve()),
        layout=f"SVHN, {TRAIN} and {TEST}{unused}",
        mirror=False,
    )


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not path.is_file():
        raise UserError(f"{path} does not exist; SVHN needs {TRAIN} and {TEST} in one folder")
    try:
        arrays = read_mat(path, ("X", "y"), lambda size: check_room(str(path), COPIES * size / 1e9))
    except (OSError, ValueError, MemoryError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is not a readable SVHN file ({reason(error)}); download the official one") from error
    for key in ("X", "y"):
        if key not in arrays:
            raise UserError(f"{path} has no array {key}; download the official file")
    images, labels = arrays["X"], arrays["y"]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise UserError(f"{path}: X is {images.dtype} of shape {images.shape}; expected uint8 (32, 32, 3, N)")
    if labels.dtype.kind not in "iu" or labels.shape != (images.shape[3], 1):
        raise UserError(
            f"{path}: y is {labels.dtype} of shape {labels.shape}; expected integers of shape ({images.shape[3]}, 1)"
        )
    for row in np.flatnonzero((labels < 1) | (labels > 10))[:1]:
        raise UserError(
            f"{path}: row {row} has label {labels[row, 0]}; labels run from 1 to 10, where 10 is the digit 0"
        )
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels[:, 0].astype(np.int64) % 10
