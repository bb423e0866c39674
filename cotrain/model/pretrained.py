"""Parts that pretrained backbones share: their input, their batch-norm, and the heads on their features."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cotrain.model.stages import Extra, Output, Stage
from cotrain.types import Settings, UserError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of pixels in [0, 1]


def check_channels(name: str, channels: int) -> None:
    if channels not in (1, 3):
        raise UserError(f"{name} was pretrained on colour images and takes 1 or 3 channels; these have {channels}")


@dataclass(frozen=True)
class Sizes:
    """The image sizes that a network takes."""

    least: int = 1  # of the shorter side
    multiple: int = 1  # of both sides
    fixed: tuple[int, int] | None = None  # height and width, if it takes only these

    def nearest(self, height: int, width: int, side: int) -> tuple[int, int]:
        """The size to bring such images to, so that no side is shorter than `side`, up to rounding."""
        if self.fixed is not None:
            return self.fixed
        larger = max(1.0, side / min(height, width))
        height, width = (max(1, round(each * larger / self.multiple)) * self.multiple for each in (height, width))
        return height, width


FLATTEST = 0.02  # of the mean standard deviation: no feature is scaled up more than by this one


class Input(nn.Module):
    """Images as the network expects them: three channels, and of a size that it takes."""

    def __init__(self, name: str, channels: int, side: int, sizes: Sizes) -> None:
        super().__init__()
        self.name, self.channels, self.side, self.sizes = name, channels, side, sizes

    def forward(self, images: Tensor) -> Tensor:
        if self.channels == 1:
            images = images.expand(-1, 3, -1, -1)
        height, width = images.shape[2:]
        wanted = self.sizes.nearest(height, width, self.side)
        if min(wanted) < self.sizes.least:
            raise UserError(
                f"images of {height}x{width} are too small for {self.name}: set model.enlarge to {self.sizes.least} "
                "or more"
            )
        if wanted == (height, width):
            return images
        shrinks = wanted[0] < height or wanted[1] < width
        return F.interpolate(images, wanted, mode="bilinear", align_corners=False, antialias=shrinks)


class FixedNorm(nn.Module):
    """Batch-norm that keeps the statistics it was pretrained with, in training too; its scale and shift can learn."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class Standardise(nn.Module):
    """Features with mean 0 and standard deviation 1, each by itself. `standardise` measures them once."""

    mean: Tensor
    std: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


class ByteDropout(nn.Dropout):
    """Dropout with one random byte per feature, so `p` is rounded to 1/256.

    On a CPU, torch's own dropout takes longer to draw its random numbers than the heads take to learn.
    """

    def forward(self, features: Tensor) -> Tensor:
        dropped = min(round(256 * self.p), 255)  # bytes below it
        if not self.training or dropped == 0:
            return features
        words = torch.empty(-(-features.numel() // 8), dtype=torch.int64, device=features.device)
        drawn = words.random_(-(2**63), None).view(torch.uint8)[: features.numel()].view(features.shape)
        return features * (drawn >= dropped).to(features.dtype).mul_(256 / (256 - dropped))


@contextmanager
def measuring(net: nn.Module) -> Iterator[None]:
    """What passes through the network sets the mean and standard deviation of its `Standardise` layers."""
    sums: dict[Standardise, Tensor] = {}  # of ones, features and their squares

    def add(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, Standardise)
        features = inputs[0].double()
        new = torch.stack([torch.ones_like(features), features, features**2]).sum(dim=1)
        sums[layer] = sums[layer] + new if layer in sums else new

    layers = [module for module in net.modules() if isinstance(module, Standardise)]
    hooks = [layer.register_forward_pre_hook(add) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for layer, (count, total, squares) in sums.items():
        mean = total / count
        spread = (squares / count - mean**2).clamp(min=0).sqrt()
        layer.mean.copy_(mean)
        floor = FLATTEST * spread.mean()  # a nearly constant feature would become nothing but noise
        layer.std.copy_(torch.where(spread > 0, spread.maximum(floor), 1.0))


class Head(Settings):
    """The layers between pooled features and logits."""

    hidden: int | None = 256  # None: a linear classifier
    dropout: float = 0.0  # of the features

    def stages(self, features: int, classes: int, extra: Extra) -> tuple[Stage, ...]:
        def prepared() -> list[nn.Module]:
            return [nn.Flatten(), Standardise(features), ByteDropout(self.dropout)]

        hidden = self.hidden
        if hidden is None:
            return (
                Stage("flat", lambda dropout: nn.Sequential(*prepared())),
                Stage("classifier", lambda dropout: Output(features, classes, extra, dropout)),
            )
        return (
            Stage(
                "hidden",
                lambda dropout: nn.Sequential(
                    *prepared(), nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.GELU()
                ),
            ),
            Stage("classifier", lambda dropout: Output(hidden, classes, extra, dropout)),
        )
