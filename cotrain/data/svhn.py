"""SVHN, house numbers cropped to single digits: train_32x32.mat and test_32x32.mat from the official site."""

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotrain.data.dataset import Dataset, from_arrays
from cotrain.data.format import ArrayFormat
from cotrain.types import UserError

TRAIN, TEST, EXTRA = "train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"
COMPRESSED = struct.pack("<i", 15)  # the type of the first variable in a little-endian file
UNREADABLE_MAT = (
    NotImplementedError,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    MemoryError,
    ArithmeticError,
    zlib.error,
    struct.error,
)


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
    from scipy.io import loadmat  # slow to import
    from scipy.io.matlab import MatReadError

    if not path.is_file():
        raise UserError(f"{path} does not exist; SVHN needs {TRAIN} and {TEST} in one folder")
    try:
        _check_header(path)
        arrays = loadmat(path, variable_names=["X", "y"])
    except (MatReadError, *UNREADABLE_MAT) as error:
        raise UserError(f"{path} is not a readable SVHN file ({error}); download the official one") from error
    for key in ("X", "y"):
        if not isinstance(arrays.get(key), np.ndarray):
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


def _check_header(path: Path) -> None:
    """Refuse a file that is not compressed: without a checksum, scipy may crash on a damaged file."""
    with open(path, "rb") as file:
        header = file.read(132)
    if not header.startswith(b"MATLAB 5.0 MAT-file") or header[128:] != COMPRESSED:
        raise ValueError("it is not a compressed MATLAB 5 to 7 file")
