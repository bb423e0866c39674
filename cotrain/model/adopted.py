"""Pretrained networks of other libraries as backbones: the image sizes that they take, their stages and their heads."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cotrain.model.family import Wanted
from cotrain.model.pretrained import Input, Sizes
from cotrain.model.stages import Backbone, Pretrained, Stage
from cotrain.types import UserError

PROBE = 64  # pixels: most networks that take several sizes take this one
LEAST = 32  # pixels: smaller images leave deep networks nothing to see


@dataclass(frozen=True)
class Adopted:
    """A pretrained network of another library."""

    stages: tuple[Stage, ...]  # from normalised colour images to pooled features (n, C, 1, 1)
    features: int  # C
    tuned_after: str
    sizes: Sizes
    size: int  # side of the images that it was trained on
    mean: tuple[float, ...]  # of colour pixels in [0, 1]
    std: tuple[float, ...]
    digest: str

    def backbone(self, name: str, wanted: Wanted) -> Backbone:
        """The network with new heads after its features."""

        def build_input(dropout: float) -> nn.Module:
            sized = Input(name, wanted.channels, wanted.side, self.sizes)
            return sized if wanted.channels == 3 else nn.Sequential(sized, FromGrey(self.mean, self.std))

        pretrained = Pretrained(
            size=self.size,
            mean=self.mean[: wanted.channels],
            std=self.std[: wanted.channels],
            digest=self.digest,
            features="features",
            tuned_after=self.tuned_after,
        )
        stages = (Stage("input", build_input), *self.stages, *wanted.head(self.features))
        return Backbone(name, stages, "features", wanted.channels, wanted.classes, pretrained=pretrained)


class FromGrey(nn.Module):
    """Grey images, normalised as the first channel, become what the network expects of the same image in colour."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        means, stds = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
        self.register_buffer("scale", stds[0] / stds)
        self.register_buffer("shift", (means[0] - means) / stds)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift


@torch.inference_mode()
def sizes_taken(
    name: str, compute: Callable[[Tensor], Tensor], multiple: int, trained_on: tuple[int, int] | None
) -> tuple[Sizes, int]:
    """The image sizes that the network takes, found by trying, and its number of features."""
    side = -(-PROBE // multiple) * multiple
    least = max(1, LEAST // multiple) * multiple
    tried = [(Sizes(least=least, multiple=multiple), (side, side + multiple))]
    if trained_on is not None:
        tried.append((Sizes(fixed=trained_on), trained_on))
    reason = ""
    for sizes, (height, width) in tried:
        try:
            features = compute(torch.zeros(1, 3, height, width))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        if features.ndim == 4 and features.shape[2:] == (1, 1):
            return sizes, features.shape[1]
        reason = f"its features have shape {tuple(features.shape)}"
    raise UserError(f"{name} does not turn images into features ({reason})")
