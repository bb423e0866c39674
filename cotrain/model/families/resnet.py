"""ResNet-18 (He et al., 2016), with the ImageNet stem or a 3x3 stem for small images."""

from functools import partial
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.stages import Backbone, Extra, Output, Stage, conv, no_extra


class ResNets(BackboneFamily):
    stems: ClassVar[dict[str, bool]] = {"resnet18": False, "resnet18-small": True}  # whether the stem is small
    listed = ", ".join(stems)

    def recognises(self, name: str) -> bool:
        return name in self.stems

    def build(self, name: str, wanted: Wanted) -> Backbone:
        return resnet18(
            channels=wanted.channels,
            classes=wanted.classes,
            small=self.stems[name],
            bn_momentum=wanted.bn_momentum,
            extra=wanted.extra,
        )


class BasicBlock(nn.Module):
    """conv3x3(stride) - BN - relu - conv3x3 - BN, plus the input or its 1x1 convolution, then relu."""

    def __init__(self, inputs: int, outputs: int, stride: int, bn_momentum: float) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs, momentum=bn_momentum)
        self.conv2, self.bn2 = conv(outputs, outputs, 3), nn.BatchNorm2d(outputs, momentum=bn_momentum)
        self.shortcut = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs, momentum=bn_momentum))
        )

    def forward(self, x: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(F.relu_(self.bn1(self.conv1(x)))))
        return F.relu_(residual.add_(self.shortcut(x)))


def _layer(inputs: int, outputs: int, stride: int, bn_momentum: float) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride, bn_momentum), BasicBlock(outputs, outputs, 1, bn_momentum))


def _stem(channels: int, small: bool, bn_momentum: float) -> nn.Sequential:
    norm, relu = nn.BatchNorm2d(64, momentum=bn_momentum), nn.ReLU(inplace=True)
    if small:
        return nn.Sequential(conv(channels, 64, 3), norm, relu)
    return nn.Sequential(conv(channels, 64, 7, 2), norm, relu, nn.MaxPool2d(3, 2, padding=1))


def _classifier(classes: int, extra: Extra, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), Output(512, classes, extra, dropout))


def resnet18(
    *, channels: int, classes: int, small: bool = False, bn_momentum: float = 0.001, extra: Extra = no_extra
) -> Backbone:
    """Dropout, if a method uses it, is applied only before the last layer."""
    layer = partial(_layer, bn_momentum=bn_momentum)
    stages = (
        Stage("stem", lambda dropout: _stem(channels, small, bn_momentum)),
        Stage("layer1", lambda dropout: layer(64, 64, 1)),
        Stage("layer2", lambda dropout: layer(64, 128, 2)),
        Stage("layer3", lambda dropout: layer(128, 256, 2)),
        Stage("layer4", lambda dropout: layer(256, 512, 2)),
        Stage("classifier", lambda dropout: _classifier(classes, extra, dropout)),
    )
    name = "resnet18-small" if small else "resnet18"
    return Backbone(name, stages, cut="layer3", channels=channels, classes=classes)
