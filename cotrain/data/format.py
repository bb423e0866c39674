"""A kind of data that `open_data` opens: how it is recognised, and how it is read."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from cotrain.data.dataset import Dataset
from cotrain.data.settings import DataSettings
from cotrain.types import UserError

AFTER_OTHERS = 100  # from this order on, formats of other packages are asked first


@dataclass(frozen=True)
class Request:
    """What a user asked for."""

    source: str  # a name or a path, as it was typed
    settings: DataSettings
    memory: float  # GB that decoded images may take; more stay on disk, where a format can do that
    console: Console

    @property
    def path(self) -> Path:
        return Path(self.source)


class DataFormat(ABC):
    """One final subclass per file in `cotrain/data/`, or per entry point in `cotrain.datasets`.

    By default it is a data set with the name of its file or entry point, as in `cotrain fit NAME`.
    """

    name: ClassVar[str]  # of the file, or of the entry point
    order: ClassVar[int] = 0  # of the formats in this package, the lowest is asked first
    listed: ClassVar[str] = ""  # what it opens, as errors list it; empty: it is not listed

    def recognises(self, source: str) -> bool:
        """Whether this name or path is for it. A path may not exist."""
        return source == self.name

    @abstractmethod
    def open(self, request: Request) -> Dataset: ...


class ArrayFormat(DataFormat, ABC):
    """Images that come as arrays with their labels; data.size resizes them."""

    @abstractmethod
    def load(self, source: str) -> Dataset: ...

    def open(self, request: Request) -> Dataset:
        return _as_asked(self.load(request.source), request.settings)


def _as_asked(dataset: Dataset, settings: DataSettings) -> Dataset:
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
