"""The contract of your own network or of a named backbone."""

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
    """Check a network. `model` is the name of a backbone, or anything that `cotrain.fit(model=...)` accepts."""
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
    in_batch = first(images)
    if not torch.equal(in_batch, second(images)):
        raise AssertionError("two builds from one seed give different outputs; draw only from torch's global generator")
    one_by_one = torch.cat([first(image[None]) for image in images], dim=1)
    if not torch.allclose(in_batch, one_by_one, atol=1e-3, rtol=1e-3):
        raise AssertionError("in eval mode, an image gets different logits by itself than in a batch")
    if len(first.heads) > 1 and torch.equal(in_batch[0], in_batch[1]):
        raise AssertionError("all heads give the same logits; each head needs its own weights")
    loss = first.train()(images).square().sum()
    loss.backward()
    idle = [name for name, weight in first.named_parameters() if weight.requires_grad and weight.grad is None]
    if idle:
        raise AssertionError(f"no gradient reaches {', '.join(idle[:3])}")
