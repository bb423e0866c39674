"""What a network of one's own, or a named backbone, must keep to."""

from collections.abc import Mapping
from typing import Any

import torch

from cotrain.config import Config
from cotrain.model.build import check_outputs
from cotrain.model.own import own_network
from cotrain.types import UserError


def check_network(
    model: Any,
    arguments: Mapping[str, Any] | None = None,
    *,
    size: tuple[int, int] = (32, 32),
    channels: int = 3,
    classes: int = 5,
    method: str = "mhct",
) -> None:
    """`model` is a backbone's name, or whatever `cotrain.fit(model=...)` takes."""
    named = isinstance(model, str) and ":" not in model
    config = Config().changed({"method": method, **({"model.backbone": model} if named else {})})
    if not named:
        config = config.with_network(own_network(model), arguments)
    images = torch.randn(4, channels, *size, generator=torch.Generator().manual_seed(0))
    try:
        first, second = (config.build_network(classes, channels).eval() for _ in range(2))
        check_outputs(first, images, config.method, config.model.backbone)
    except (UserError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{config.model.backbone} cannot be built or called: {error}") from error
    together = first(images)
    if not torch.equal(together, second(images)):
        raise AssertionError("built twice from one seed it gives two outputs; draw from torch's global generator only")
    alone = torch.cat([first(image[None]) for image in images], dim=1)
    if not torch.allclose(together, alone, atol=1e-3, rtol=1e-3):
        raise AssertionError("in eval mode an image gives other logits alone than in a batch")
    if len(first.heads) > 1 and torch.equal(together[0], together[1]):
        raise AssertionError("all heads give the same logits; build each of them anew")
    loss = first.train()(images).square().sum()
    loss.backward()
    idle = [name for name, weight in first.named_parameters() if weight.requires_grad and weight.grad is None]
    if idle:
        raise AssertionError(f"no gradient reaches {', '.join(idle[:3])}")
