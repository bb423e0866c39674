"""Images as uint8 tensors, named splits of them, and batches that depend on (seed, step) alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from cotrain.data.cifar import is_cifar, load_cifar
from cotrain.data.dataset import Dataset, Images, from_arrays
from cotrain.data.digits import load_digits
from cotrain.data.duplicates import contradicts, duplicates, leaks
from cotrain.data.fetch import NAMES, placed
from cotrain.data.folder import check_complete, load_folder
from cotrain.data.memory import quarter_of_memory
from cotrain.data.npz import load_npz
from cotrain.data.settings import DataSettings
from cotrain.data.source import Source
from cotrain.data.split import Split, draw_split
from cotrain.data.svhn import is_svhn, load_svhn
from cotrain.types import UserError

__all__ = [
    "DataSettings",
    "Dataset",
    "Images",
    "Source",
    "Split",
    "check_complete",
    "contradicts",
    "draw_split",
    "duplicates",
    "from_arrays",
    "is_openable",
    "leaks",
    "open_data",
]
KINDS = "a folder of images, a .npz file, digits, " + ", ".join(NAMES)


def is_openable(source: str | None) -> bool:
    """Whether `open_data` finds something there; data that came as arrays have no place."""
    return source is not None and (source in ("digits", *NAMES) or Path(source).exists())


def open_data(
    source: str | Path,
    settings: DataSettings | None = None,
    *,
    memory: float | None = None,
    console: Console | None = None,
) -> Dataset:
    """The data a user names: `digits`, one of the paper's sets, a folder of images, or a file.

    A folder whose decoded images take more than `memory` GB (a quarter of the machine's, if None) is read from disk
    as it is used.
    """
    settings, console = settings or DataSettings(), console or Console(quiet=True)
    memory = quarter_of_memory() if memory is None else memory
    if source == "digits":
        return _as_asked(load_digits(), settings)
    if source in NAMES:
        return replace(_open_path(placed(str(source)), settings, memory, console), source=str(source))
    return _open_path(Path(source), settings, memory, console)


def _open_path(path: Path, settings: DataSettings, memory: float, console: Console) -> Dataset:
    if not path.exists():
        raise UserError(f"{path} does not exist; data are {KINDS}")
    if path.suffix == ".npz":
        return _as_asked(load_npz(path), settings)
    if is_cifar(path):
        return _as_asked(load_cifar(path), settings)
    if is_svhn(path):
        return _as_asked(load_svhn(path), settings)
    if path.is_dir():
        dataset = load_folder(path, settings, memory, console)
        if not settings.skip_unreadable:
            check_complete(dataset)
        return dataset
    if path.suffix in (".zip", ".tar", ".gz", ".tgz"):
        raise UserError(f"{path} is an archive, and not one of CIFAR's; unpack it and name the folder")
    raise UserError(f"{path} is no data that cotrain reads; data are {KINDS}")


def _as_asked(dataset: Dataset, settings: DataSettings) -> Dataset:
    """Arrays come with their labels, and can be resized."""
    for key in ("labels_file", "path_column", "label_column"):
        if getattr(settings, key) is not None:
            raise UserError(f"data.{key} is for a folder of images; {dataset.name} has its labels in it")
    if settings.size is None:
        return dataset
    height, width = map(int, settings.size.split("x"))
    assert isinstance(dataset.images, Tensor)
    shape = (len(dataset.images), height, width, dataset.shape[-1])
    if shape[-1] not in (1, 3):
        raise UserError(f"data.size: images of {shape[-1]} channels cannot be resized, only those of 1 or 3")
    pictures = dataset.images.numpy()[..., 0] if shape[-1] == 1 else dataset.images.numpy()
    resized = [
        np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC)) for picture in pictures
    ]
    return replace(dataset, images=torch.from_numpy(np.stack(resized).reshape(shape)))
