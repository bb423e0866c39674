"""From settings to a network."""

import torch

from cotrain.model import backbone
from cotrain.model.multihead import MultiHead
from cotrain.model.settings import ModelSettings
from cotrain.types import Method


def build_network(settings: ModelSettings, method: Method, *, classes: int, channels: int, seed: int) -> MultiHead:
    """The backbone of the settings, cut into a trunk and the method's heads, initialised from the seed."""
    after = method.share or settings.share
    narrowed = method.heads > 1 and after != "none"  # what the paper saves on several heads, a single one does not need
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        stages = backbone(
            settings.backbone,
            channels=channels,
            classes=classes,
            last_width=settings.last_width if narrowed else None,
            bn_momentum=settings.bn_momentum,
            extra=method.extra,
        )
        return MultiHead.cut(
            stages,
            method.heads,
            after=after,
            head_init=settings.head_init,
            dropout=method.dropout,
        )
