"""The contract of your own network or of a named backbone."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cotrain.config import Config
from cotrain.model.build import check_outputs
from cotrain.model.own import own_network
from cotrain.model.trust import is_import_path
from cotrain.networks import build_network, build_trunk
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
    named = isinstance(model, str) and not is_import_path(model)
    config = Config().changed({"method": method, **({"model.backbone": model} if named else {})})
    if not named:
        config = config.with_network(own_network(model), arguments)
    try:
        images = _inputs(config, size, channels, classes)
        first, second = (build_network(config, classes, channels).eval() for _ in range(2))
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


def _inputs(config: Config, size: tuple[int, int], channels: int, classes: int) -> Tensor:
    """Random images or, if the network has a frozen trunk, its features of random images."""
    generator = torch.Generator().manual_seed(0)
    first, second = (build_trunk(config, classes, (*size, channels)) for _ in range(2))
    if first is None or second is None:
        return torch.randn(4, channels, *size, generator=generator)
    pixels = torch.randint(0, 256, (4, *size, channels), generator=generator, dtype=torch.uint8)
    _ = first.shape
    features = first.net(pixels)
    if first.digest != second.digest or not torch.equal(features, second.net(pixels)):
        raise AssertionError(
            "two builds of the frozen trunk differ; read its weights, or draw only from torch's generator"
        )
    if not torch.allclose(features, torch.cat([first.net(image[None]) for image in pixels]), atol=1e-3, rtol=1e-3):
        raise AssertionError("the frozen trunk gives an image different features by itself than in a batch")
    return features
