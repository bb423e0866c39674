"""Backbones as lists of named stages, and the network that shares some of them between heads."""

import re

from cotrain.model.backbone import Backbone, Extra, Stage, no_extra
from cotrain.model.multihead import MultiHead
from cotrain.model.resnet import resnet18
from cotrain.model.wrn import wrn
from cotrain.types import UserError

__all__ = ["Backbone", "MultiHead", "Stage", "backbone", "resnet18", "wrn"]


def backbone(
    name: str,
    *,
    channels: int,
    classes: int,
    last_width: int | None = None,
    bn_momentum: float = 0.001,
    extra: Extra = no_extra,
) -> Backbone:
    """`wrn-DEPTH-WIDTH`, `resnet18` (ImageNet stem) or `resnet18-small` (3x3 stem, for small images)."""
    if match := re.fullmatch(r"wrn-(\d+)-(\d+)", name):
        depth, width = int(match[1]), int(match[2])
        return wrn(
            depth,
            width,
            channels=channels,
            classes=classes,
            last_width=last_width,
            bn_momentum=bn_momentum,
            extra=extra,
        )
    if name in ("resnet18", "resnet18-small"):
        if last_width is not None:
            raise UserError("model.last_width narrows the last group of a wrn; resnet18 has none")
        small = name == "resnet18-small"
        return resnet18(channels=channels, classes=classes, small=small, bn_momentum=bn_momentum, extra=extra)
    raise UserError(f"there is no backbone {name!r}; there are: wrn-DEPTH-WIDTH (wrn-28-2), resnet18, resnet18-small")
