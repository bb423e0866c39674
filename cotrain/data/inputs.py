"""The inputs of the network for images as they are, without augmentation: normalised pixels, or features."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.augment import Policy, draw_plain, normalised
from cotrain.data.bank import Bank
from cotrain.data.feature_table import Features, standardised
from cotrain.data.imagefile import Images
from cotrain.ops import one_hot, widest

PIXELS_AT_ONCE = 500 * 32 * 32
FEATURES_AT_ONCE = 2**21


class Inputs(Protocol):
    def at_once(self, net: nn.Module) -> int:
        """The batch size that keeps the network's memory the same for inputs of any size."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a saved model must know to make the same inputs."""

    def plain(self, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        """(n, c, h, w) for these images."""


@dataclass(frozen=True)
class ImageInputs:
    """Pixels, normalised."""

    images: Images
    mean: Sequence[float]
    std: Sequence[float]

    def at_once(self, net: nn.Module) -> int:
        return images_at_once(*self.images.shape[1:3])

    @property
    def facts(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "std": list(self.std)}

    def plain(self, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        held, (places,) = near(self.images, [rows], device)
        return normalised(held, places, draw_plain(len(rows)), Policy(), self.mean, self.std).to(device)


@dataclass(frozen=True)
class BankInputs:
    """Features of a frozen trunk."""

    bank: Bank

    def at_once(self, net: nn.Module) -> int:
        return rows_at_once(int(np.prod(self.bank.shape)), net)

    @property
    def facts(self) -> dict[str, Any]:
        return {"features": list(self.bank.shape), "trunk": self.bank.trunk}

    def plain(self, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        return self.bank.plain(rows).to(device)


@dataclass(frozen=True)
class FeatureInputs:
    """The rows of a table, standardised, with one input per category."""

    features: Features
    mean: Sequence[float]  # of each column
    std: Sequence[float]

    def at_once(self, net: nn.Module) -> int:
        return rows_at_once(self.features.shape[-1], net)

    @property
    def facts(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "std": list(self.std), "columns": self.features.facts}

    def standardised(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, D) with mean 0 and standard deviation 1 in each column of numbers. By numpy, see `Bank`."""
        return standardised(self.features[rows], self.mean, self.std).astype(np.float32)

    def of(self, values: NDArray[np.float32], device: torch.device) -> Tensor:
        """Standardised rows (..., D), or views of them, as the network takes them: (..., D', 1, 1)."""
        return one_hot(torch.from_numpy(values).to(device), self.features.one_hot)[..., None, None]

    def plain(self, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        return self.of(self.standardised(rows), device)


@dataclass(frozen=True)
class Remembering:
    """Other inputs. If they are features, those that went through the network are kept, pooled over the image."""

    inputs: Inputs
    keep: bool
    kept: list[NDArray[np.float32]] = field(default_factory=list)

    def at_once(self, net: nn.Module) -> int:
        return self.inputs.at_once(net)

    @property
    def facts(self) -> dict[str, Any]:
        return self.inputs.facts

    def plain(self, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        found = self.inputs.plain(rows, device)
        if self.keep:
            self.kept.append(found.float().mean(dim=(2, 3)).cpu().numpy())
        return found

    @property
    def features(self) -> NDArray[np.float32]:
        """(n, D) of all rows so far."""
        return np.concatenate(self.kept) if self.kept else np.empty((0, 0), np.float32)


def rows_at_once(width: int, net: nn.Module) -> int:
    """For rows of so many inputs: hidden layers may be wider."""
    return max(1, FEATURES_AT_ONCE // max(width, widest(net)))


def images_at_once(height: int, width: int) -> int:
    return max(1, PIXELS_AT_ONCE // (height * width))


def near(
    images: Images, rows: Sequence[NDArray[np.int64]], device: torch.device
) -> tuple[Tensor, list[NDArray[np.int64]]]:
    """A tensor that holds the images of all these rows, read from disk if necessary, and their places in it."""
    if isinstance(images, Tensor):
        return images, list(rows)
    needed, places = np.unique(np.concatenate(rows), return_inverse=True)
    return images[needed].to(device), np.split(places, np.cumsum([len(part) for part in rows])[:-1])
