"""Images through a frozen trunk, as inputs of the heads."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cotrain.data.imagefile import Images
from cotrain.data.inputs import near
from cotrain.trunk.building import AT_ONCE, cores
from cotrain.trunk.runtime import Compute

IMAGES_AT_ONCE = 256


@dataclass(frozen=True)
class TrunkInputs:
    """Features, computed by the trunk when they are needed."""

    images: Images
    compute: Compute

    def at_once(self, net: nn.Module) -> int:
        return IMAGES_AT_ONCE

    @property
    def facts(self) -> dict[str, Any]:
        return {}

    def plain(self, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        held, (places,) = near(self.images, [rows], torch.device("cpu"))
        return torch.from_numpy(self.compute(held[torch.from_numpy(places)].numpy())).to(device)


def on_all_cores(compute: Compute) -> Compute:
    """The same function, with the images divided among all cores."""
    pool = ThreadPoolExecutor(cores())

    def divided(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        parts: Sequence[NDArray[np.uint8]] = [images[at : at + AT_ONCE] for at in range(0, len(images), AT_ONCE)]
        return np.concatenate([*pool.map(compute, parts)])

    return divided
