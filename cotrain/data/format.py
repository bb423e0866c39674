"""A data format of `open_data`: how it is recognised and how it is read."""

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

AFTER_OTHERS = 100  # formats of other packages come before built-in ones with at least this order


@dataclass(frozen=True)
class Request:
    """What the user wants to open."""

    source: str  # a name or a path, as typed
    settings: DataSettings
    memory: float  # GB for decoded images; larger data stay on disk, if the format supports it
    console: Console

    @property
    def path(self) -> Path:
        return Path(self.source)


class DataFormat(ABC):
    """One final subclass per file in `cotrain/data/`, or per entry point in `cotrain.datasets`.

    By default it is one dataset with the name of its file or entry point, as in `cotrain fit NAME`.
    """

    name: ClassVar[str]  # the name of the file or entry point
    order: ClassVar[int] = 0  # built-in formats are tried from the lowest to the highest
    listed: ClassVar[str] = ""  # what it opens, as listed in errors; empty: not listed

    def recognises(self, source: str) -> bool:
        """Whether this format opens the name or path. The path need not exist."""
        return source == self.name

    @abstractmethod
    def open(self, request: Request) -> Dataset: ...


class ArrayFormat(DataFormat, ABC):
    """A dataset of arrays: images with their labels. data.size resizes the images."""

    @abstractmethod
    def load(self, source: str) -> Dataset: ...

    def open(self, request: Request) -> Dataset:
        return _with_settings(self.load(request.source), request.settings)


def _with_settings(dataset: Dataset, settings: DataSettings) -> Dataset:
    for key in ("labels_file", "path_column", "label_column"):
        if getattr(settings, key) is not None:
            raise UserError(f"data.{key} is for a folder of images; {dataset.name} contains its labels")
    if settings.size is None:
        return dataset
    height, width = map(int, settings.size.split("x"))
    assert isinstance(dataset.images, Tensor)
    shape = (len(dataset.images), height, width, dataset.shape[-1])
    if shape[-1] not in (1, 3):
        raise UserError(f"data.size: images with {shape[-1]} channels cannot be resized; only those with 1 or 3 can")
    pictures = dataset.images.numpy()[..., 0] if shape[-1] == 1 else dataset.images.numpy()
    resized = [
        np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC)) for picture in pictures
    ]
    return replace(dataset, images=torch.from_numpy(np.stack(resized).reshape(shape)))
