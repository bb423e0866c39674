"""A backbone is a list of named stages; a network is built by cutting it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Stage:
    """One part of a backbone: `build` makes it anew, freshly initialised, every time it is called."""

    name: str
    build: Callable[[], nn.Module]


@dataclass(frozen=True)
class Backbone:
    name: str
    stages: tuple[Stage, ...]
    cut: str  # the last shared stage, where the paper cuts
    channels: int

    @property
    def cuts(self) -> list[str]:
        """Every place to cut; "none" shares nothing: separate models."""
        return ["none", *(stage.name for stage in self.stages[:-1])]


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the image size, initialised by N(0, 2 / (size^2 outputs))."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
