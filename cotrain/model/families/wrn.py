"""Wide residual networks (Zagoruyko & Komodakis, 2016), with the pre-activation layout of the paper's released code:
convolutions have no bias, and convolutional shortcuts take the activated input."""

import re
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.stages import Backbone, Extra, Output, Stage, conv, no_extra
from cotrain.types import UserError

LEAK = 0.1  # negative slope of LeakyReLU


class WideResNets(BackboneFamily):
    takes_last_width = True
    listed = "wrn-DEPTH-WIDTH (wrn-28-2)"
    pattern = re.compile(r"wrn-(\d+)-(\d+)")

    def recognises(self, name: str) -> bool:
        return self.pattern.fullmatch(name) is not None

    def build(self, name: str, wanted: Wanted) -> Backbone:
        depth, width = map(int, name.split("-")[1:])
        return wrn(
            depth,
            width,
            channels=wanted.channels,
            classes=wanted.classes,
            last_width=wanted.last_width,
            bn_momentum=wanted.bn_momentum,
            extra=wanted.extra,
        )


class Unit(nn.Module):
    """BN - act - conv3x3(stride) - BN - act - conv3x3, plus the input or its 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int, bn_momentum: float, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs, momentum=bn_momentum)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs, momentum=bn_momentum)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv(outputs, outputs, 3)
        self.shortcut = None if inputs == outputs and stride == 1 else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.leaky_relu_(self.bn1(x), LEAK)
        residual = self.conv2(self.dropout(F.leaky_relu_(self.bn2(self.conv1(activated)), LEAK)))
        return residual.add_(x if self.shortcut is None else self.shortcut(activated))


class Classifier(Output):
    """BN - act - global average pool - linear."""

    def __init__(self, inputs: int, classes: int, extra: Extra, bn_momentum: float, dropout: float) -> None:
        super().__init__(inputs, classes, extra, dropout)
        self.bn = nn.BatchNorm2d(inputs, momentum=bn_momentum)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.leaky_relu_(self.bn(x), LEAK).mean(dim=(2, 3)))


def _group(inputs: int, outputs: int, stride: int, units: int, bn_momentum: float, dropout: float) -> nn.Sequential:
    first = Unit(inputs, outputs, stride, bn_momentum, dropout)
    return nn.Sequential(first, *(Unit(outputs, outputs, 1, bn_momentum, dropout) for _ in range(units - 1)))


def wrn(
    depth: int,
    width: int,
    *,
    channels: int,
    classes: int,
    last_width: int | None = None,
    bn_momentum: float = 0.001,
    extra: Extra = no_extra,
) -> Backbone:
    """WRN-depth-width. `last_width` sets the channels of the last group (256 in the paper's WRN-28-8)."""
    units, rest = divmod(depth - 4, 6)
    if rest or units < 1 or width < 1:
        raise UserError(f"wrn-{depth}-{width}: the depth must be 6n + 4 (10, 16, 22, 28, ...) and the width at least 1")
    wide1, wide2, wide3 = 16 * width, 32 * width, last_width or 64 * width
    group = partial(_group, units=units, bn_momentum=bn_momentum)
    stages = (
        Stage("stem", lambda dropout: conv(channels, 16, 3)),
        Stage("group1", lambda dropout: group(16, wide1, 1, dropout=dropout)),
        Stage("group2", lambda dropout: group(wide1, wide2, 2, dropout=dropout)),
        Stage("group3", lambda dropout: group(wide2, wide3, 2, dropout=dropout)),
        Stage("classifier", lambda dropout: Classifier(wide3, classes, extra, bn_momentum, dropout)),
    )
    return Backbone(f"wrn-{depth}-{width}", stages, cut="group2", channels=channels, classes=classes)
