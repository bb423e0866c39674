"""A backbone is a list of named stages; cutting it gives a network."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cotrain.types import UserError

Extra = Callable[
    [int], nn.Module | None
]  # what a method adds to the outputs of a head, given the number of pooled features


FROZEN = "frozen"  # the stage that stands for those whose features are computed once


@dataclass(frozen=True)
class Stage:
    """One part of a backbone. Each call of `build` makes a new one with the given dropout."""

    name: str
    build: Callable[[float], nn.Module]


@dataclass(frozen=True)
class Pretrained:
    """The images that a pretrained network expects, and where its weights come from."""

    size: int  # side of the images that it was trained on
    mean: tuple[float, ...]  # of pixels in [0, 1], per channel: the network takes (pixel - mean) / std
    std: tuple[float, ...]
    digest: str = ""  # identifies the weights; those of your own network are identified by their content
    features: str = ""  # the stage that ends with pooled features; heads begin there unless model.share says otherwise
    tuned_after: str = ""  # the last stage that model.trunk=tuned leaves as it is; "": it cannot be tuned
    seen: str = ""  # the images that the weights were trained on, such as "ImageNet"


@dataclass(frozen=True)
class Backbone:
    """A network as a list of stages, and the place where the paper cuts it into a trunk and heads."""

    name: str
    stages: tuple[Stage, ...]
    cut: str  # where the paper cuts: the name of the last shared stage
    channels: int | None  # of the images; None: of the features that earlier stages compute
    classes: int
    pretrained: Pretrained | None = None

    @property
    def cuts(self) -> list[str]:
        """All places to cut. "none" shares nothing: separate models."""
        return ["none", *(stage.name for stage in self.stages[:-1])]

    def place(self, after: str) -> int:
        """The number of stages up to this cut, which "paper" puts where the paper does."""
        after = self.cut if after == "paper" else after
        if after not in self.cuts:
            raise UserError(f"{self.name} cannot be cut after {after!r}; choose one of: {', '.join(self.cuts)}")
        return self.cuts.index(after)

    def after(self, last: str) -> "Backbone":
        """The rest of the network after this stage, on its outputs instead of images."""
        place = self.place(last)
        rest = (Stage(FROZEN, lambda dropout: nn.Identity()), *self.stages[place:])
        cut = self.cut if self.cut in {stage.name for stage in rest} else FROZEN
        return replace(self, stages=rest, cut=cut, channels=None)


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the image size, initialised from N(0, 2 / (size^2 outputs))."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def no_extra(features: int) -> None:
    return None


BuildHead = Callable[[int], tuple[Stage, ...]]  # number of pooled features -> the stages after them


def no_head(features: int) -> tuple[Stage, ...]:
    return ()


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
