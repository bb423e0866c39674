"""The frozen part of a pretrained network, from uint8 pixels to features."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from cotrain.model.build import last_frozen, own_network_of, parts_of
from cotrain.model.own import Pair
from cotrain.model.settings import ModelSettings
from cotrain.model.weights import fingerprint
from cotrain.types import Method, UserError

VERSION = 1  # of how a trunk computes its features


class FromPixels(nn.Module):
    """A network on uint8 images (n, h, w, c): it normalises them first. Pooled features (n, C) become (n, C, 1, 1)."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", 255 * torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(std, dtype=torch.float64).view(-1, 1, 1))
        self.float()

    def forward(self, images: Tensor) -> Tensor:
        features = self.net((images.permute(0, 3, 1, 2).float() - self.mean) / self.std)
        return features[:, :, None, None] if features.ndim == 2 else features


@dataclass(frozen=True)
class Trunk:
    """A frozen network from uint8 images to features, and what identifies it."""

    net: FromPixels
    images: tuple[int, int, int]  # height, width, channels
    digest: str  # of the weights, and of where the network is cut
    name: str = "the network"

    @property
    def key(self) -> str:
        text = f"{VERSION} {self.digest} {self.images} {torch.__version__}"
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    @cached_property
    def weights(self) -> str:
        """Identifies its weights, wherever they came from."""
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(self.net.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the features."""
        with torch.inference_mode():
            shape = tuple(self.net(torch.zeros(1, *self.images, dtype=torch.uint8)).shape)
        if len(shape) != 4:
            raise UserError(f"a frozen trunk gives features (n, C) or (n, C, h, w), not {shape}")
        return shape[1], shape[2], shape[3]


def build_trunk(settings: ModelSettings, method: Method, *, classes: int, images: tuple[int, int, int]) -> Trunk | None:
    """The frozen part of a pretrained network, for images of this height, width and channels."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # whatever the user's own network draws is frozen too
        parts = parts_of(settings, method, classes=classes, channels=images[2])
        if isinstance(parts, Pair):
            return None
        last = last_frozen(parts, settings, method.share or settings.share)
        if last is None:
            return None
        net = nn.Sequential(*(stage.build(0.0) for stage in parts.stages[: parts.place(last)]))
    pretrained = parts.pretrained
    assert pretrained is not None
    digest = f"{parts.name} {pretrained.digest} after {last}, enlarged to {settings.enlarge}"
    if own_network_of(settings) is not None:
        digest += f", mean {pretrained.mean}, std {pretrained.std}, {fingerprint(net)}"
    whole = FromPixels(net, pretrained.mean, pretrained.std).eval().requires_grad_(False)
    return Trunk(whole, images, digest, parts.name)
