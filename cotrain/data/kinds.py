"""The kinds of data: pixels, features of images in a bank, and the rows of a table.

A kind knows what depends on it: what an example is called, how examples become inputs of the network, and which batches
a step gets. Nobody else asks which kind it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.data.bank import Bank
from cotrain.data.feature_source import FeatureSource
from cotrain.data.feature_table import Column, Features
from cotrain.data.imagefile import Images
from cotrain.data.inputs import BankInputs, FeatureInputs, ImageInputs, Inputs
from cotrain.data.source import BankSource, BatchSource, Drawing, Source
from cotrain.types import Pool, Unit, UserError

AT_ONCE = 512
ENOUGH_FOR_STATISTICS = 50_000
DRAWABLE = (1, 3)  # channels of images that can be shown

Statistics = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each channel or column


class Kind(ABC):
    unit: ClassVar[Unit] = Unit.IMAGE  # what an example is called
    recipe: ClassVar[str | None] = None  # the recipe that suits it, whatever the network
    on_features: ClassVar[bool] = False  # the network takes features, so that training takes seconds
    bank: Bank | None = None  # of features that do not change in training, if there is one

    @property
    @abstractmethod
    def kept(self) -> str:
        """Where the examples are kept, in words."""

    @property
    @abstractmethod
    def pixels(self) -> Images:
        """The images; rows of a table have none."""

    @property
    def table(self) -> Features | None:
        """The rows of a table; images have none."""
        return None

    @property
    def columns(self) -> tuple[Column, ...]:
        return () if self.table is None else self.table.columns

    @property
    def can_draw(self) -> bool:
        return False

    @property
    def are_vectors(self) -> bool:
        """Whether an input of the network is a vector, as logistic regression needs."""
        return False

    @abstractmethod
    def statistics(self, rows: NDArray[np.int64]) -> Statistics:
        """Over these rows, for pixels scaled to [0, 1]. A large set is represented by evenly spaced rows."""

    @abstractmethod
    def inputs(self, rows: NDArray[np.int64], expected: Statistics | None = None) -> Inputs:
        """Standardised by the statistics of these rows, or by those that a pretrained network expects of pixels."""

    @abstractmethod
    def source(self, inputs: Inputs, pool: Pool, drawing: Drawing, device: torch.device) -> BatchSource:
        """The batches of every step."""


@dataclass(frozen=True)
class Pixels(Kind):
    images: Images

    @property
    def kept(self) -> str:
        return "in memory" if isinstance(self.images, Tensor) else "read from disk during training"

    @property
    def pixels(self) -> Images:
        return self.images

    @property
    def can_draw(self) -> bool:
        return self.images.shape[-1] in DRAWABLE

    def statistics(self, rows: NDArray[np.int64]) -> Statistics:
        rows = evenly(rows, ENOUGH_FOR_STATISTICS)
        levels, channels = np.arange(256) / 255, self.images.shape[-1]
        counts = np.zeros((channels, 256), np.int64)
        for part in np.array_split(rows, len(rows) // AT_ONCE + 1):
            pixels = self.images[part].numpy()
            for channel in range(channels):
                counts[channel] += np.bincount(pixels[..., channel].ravel(), minlength=256)
        share = counts / counts.sum(axis=1, keepdims=True)
        mean = share @ levels
        std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(axis=1))
        return mean.tolist(), [value or 1.0 for value in std.tolist()]

    def inputs(self, rows: NDArray[np.int64], expected: Statistics | None = None) -> Inputs:
        return ImageInputs(self.images, *(expected or self.statistics(rows)))

    def source(self, inputs: Inputs, pool: Pool, drawing: Drawing, device: torch.device) -> BatchSource:
        assert isinstance(inputs, ImageInputs)
        return Source(inputs, pool, drawing, device)


@dataclass(frozen=True)
class Banked(Pixels):
    """Images whose features a frozen trunk has computed."""

    bank: Bank
    on_features: ClassVar[bool] = True

    @property
    def are_vectors(self) -> bool:
        return self.bank.shape[1:] == (1, 1)

    def inputs(self, rows: NDArray[np.int64], expected: Statistics | None = None) -> Inputs:
        return BankInputs(self.bank)

    def source(self, inputs: Inputs, pool: Pool, drawing: Drawing, device: torch.device) -> BatchSource:
        assert isinstance(inputs, BankInputs)
        return BankSource(inputs, pool, drawing, device)


@dataclass(frozen=True)
class Rows(Kind):
    """The rows of a table."""

    features: Features
    name: str  # of the table
    unit: ClassVar[Unit] = Unit.ROW
    recipe: ClassVar[str | None] = "features"
    on_features: ClassVar[bool] = True

    @property
    def kept(self) -> str:
        return self.features.kept

    @property
    def pixels(self) -> Images:
        raise UserError(f"{self.name} is a table of features; this needs images")

    @property
    def table(self) -> Features | None:
        return self.features

    @property
    def are_vectors(self) -> bool:
        return True

    def statistics(self, rows: NDArray[np.int64]) -> Statistics:
        return self.features.statistics(evenly(rows, ENOUGH_FOR_STATISTICS))

    def inputs(self, rows: NDArray[np.int64], expected: Statistics | None = None) -> Inputs:
        return FeatureInputs(self.features, *self.statistics(rows))

    def source(self, inputs: Inputs, pool: Pool, drawing: Drawing, device: torch.device) -> BatchSource:
        assert isinstance(inputs, FeatureInputs)
        return FeatureSource(inputs, pool, drawing, device)


def kind_of(images: Images | Features, bank: Bank | None, name: str) -> Kind:
    if isinstance(images, Features):
        return Rows(images, name)
    return Pixels(images) if bank is None else Banked(images, bank)


def evenly(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most `most` of the rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // most))]
