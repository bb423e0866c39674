"""A backbone is a list of named stages; cutting it gives a network."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Extra = Callable[
    [int], nn.Module | None
]  # what a method adds to the outputs of a head, given the number of pooled features


@dataclass(frozen=True)
class Stage:
    """One part of a backbone. Each call of `build` makes a new one with the given dropout."""

    name: str
    build: Callable[[float], nn.Module]


@dataclass(frozen=True)
class Backbone:
    """A network as a list of stages, and the place where the paper cuts it into a trunk and heads."""

    name: str
    stages: tuple[Stage, ...]
    cut: str  # where the paper cuts: the name of the last shared stage
    channels: int
    classes: int

    @property
    def cuts(self) -> list[str]:
        """All places to cut. "none" shares nothing: separate models."""
        return ["none", *(stage.name for stage in self.stages[:-1])]


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the image size, initialised from N(0, 2 / (size^2 outputs))."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def no_extra(features: int) -> None:
    return None


class Output(nn.Module):
    """Pooled features -> logits, followed by the output of the method's extra module, if it has one."""

    def __init__(self, features: int, classes: int, extra: Extra, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(features, classes)
        self.extra = extra(features)

    def forward(self, features: Tensor) -> Tensor:
        logits = self.fc(self.dropout(features))
        return logits if self.extra is None else torch.cat([logits, self.extra(features)], dim=1)
