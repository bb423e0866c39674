"""Every operation, by the kernel and by tensors, equals Pillow's in every pixel."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from benchmarks.step.pillow import apply
from cotrain.augment import OPS, Policy, draw_op, pixels

from .pictures import KINDS, SIZES, batches, picture

ENHANCERS = ("Brightness", "Color", "Contrast", "Sharpness")
SHIFTS = ("ShearX", "ShearY", "TranslateX", "TranslateY")
RANGES = {
    **dict.fromkeys(ENHANCERS, (0.0, 2.5)),
    **dict.fromkeys(SHIFTS, (-1.2, 1.2)),
    "Posterize": (1.0, 8.0),
    "Rotate": (-89.9, 89.9),
    "Solarize": (0.0, 256.0),
}
NOTABLE = {
    **dict.fromkeys(ENHANCERS, (0.0, 0.05, 0.28, 0.95, 1.0, 1.72)),
    **dict.fromkeys(SHIFTS, (-0.3, -0.0, 0.0, 1e-7, 0.3)),
    "Posterize": (1.0, 4.0, 4.999, 7.999, 8.0),
    "Rotate": (-45.0, -30.0, -1e-9, 0.0, 30.0, 60.0),
    "Solarize": (0.0, 0.5, 26.0, 255.0, 255.001, 256.0),
}


def by_pillow(images: Tensor, name: str, magnitudes: Sequence[float]) -> Tensor:
    """(n, H, W, C) uint8, image i with magnitude i."""
    arrays = images.numpy()
    if images.shape[3] == 1:
        arrays = arrays[..., 0]
    changed = [np.asarray(apply(Image.fromarray(array), name, v)) for array, v in zip(arrays, magnitudes, strict=True)]
    return torch.from_numpy(np.stack(changed).reshape(images.shape))


def assert_equals_pillow(images: Tensor, name: str, magnitudes: Sequence[float]) -> None:
    draw = draw_op(name, magnitudes, *images.shape[1:3])
    expected = by_pillow(images, name, magnitudes)
    for path in ("kernel", "tensor"):
        made = pixels(images, range(len(images)), draw, Policy(), path=path)
        wrong = (made != expected).sum().item()
        assert wrong == 0, f"{path}: {wrong} of {made.numel()} levels differ from Pillow's {name} {magnitudes}"


def magnitudes_of(name: str) -> st.SearchStrategy[float]:
    if name not in RANGES:
        return st.just(0.0)
    low, high = RANGES[name]
    uniform = st.integers(0, 2**53).map(lambda u: low + (high - low) * u / 2**53)
    return st.sampled_from(NOTABLE[name]) | uniform


@pytest.mark.system
@pytest.mark.no_cover  # test_all_notable_magnitudes_sizes_and_kinds covers the same lines
@pytest.mark.parametrize("name", OPS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_image_any_magnitude(name: str, data: st.DataObject) -> None:
    images = data.draw(batches(channels=[1, 3]))
    magnitudes = data.draw(st.lists(magnitudes_of(name), min_size=len(images), max_size=len(images)))
    assert_equals_pillow(images, name, magnitudes)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("channels", [1, 3])
def test_all_notable_magnitudes_sizes_and_kinds(name: str, channels: int) -> None:
    rng = np.random.default_rng(0)
    magnitudes = NOTABLE.get(name, (0.0,))
    for height, width in SIZES:
        for kind in KINDS:
            images = torch.from_numpy(np.stack([picture(kind, height, width, channels, rng) for _ in magnitudes]))
            assert_equals_pillow(images, name, magnitudes)


@pytest.mark.no_cover  # test_all_notable_magnitudes_sizes_and_kinds covers the same lines
@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
def test_many_magnitudes_of_geometry(name: str) -> None:
    rng = np.random.default_rng(1)
    for side in (32, 84):
        images = torch.from_numpy(np.stack([picture("noise", side, side, 3, rng) for _ in range(300)]))
        low, high = (-30, 30) if name == "Rotate" else (-0.3, 0.3)
        assert_equals_pillow(images, name, rng.uniform(low, high, len(images)).tolist())


@pytest.mark.no_cover  # test_all_notable_magnitudes_sizes_and_kinds covers the same lines
@pytest.mark.parametrize("magnitude", [-0.3, 0.3])
def test_ends_of_translation_at_every_width(magnitude: float) -> None:
    rng = np.random.default_rng(2)
    for width in range(1, 129):
        assert_equals_pillow(torch.from_numpy(picture("noise", 2, width, 1, rng))[None], "TranslateX", [magnitude])


@settings(max_examples=40, deadline=None)
@given(images=batches(channels=[2, 4, 5]), factor=st.floats(0, 2.5, width=32))
def test_other_channel_counts_take_the_mean_as_luma(images: Tensor, factor: float) -> None:
    levels = images.numpy().astype(np.float32)
    luma = np.floor(images.numpy().mean(-1, keepdims=True, dtype=np.float64) + 0.5)
    mean = np.floor(luma.mean((1, 2), keepdims=True) + 0.5)
    for name, degenerate in (("Color", luma), ("Contrast", mean)):
        base = degenerate.astype(np.float32)
        expected = np.trunc((base + np.float32(factor) * (levels - base)).clip(0, 255)).astype(np.uint8)
        draw = draw_op(name, [factor] * len(images), *images.shape[1:3])
        for path in ("kernel", "tensor"):
            made = pixels(images, range(len(images)), draw, Policy(), path=path)
            assert torch.equal(made, torch.from_numpy(expected))


@settings(max_examples=20, deadline=None)
@given(images=batches(channels=[2, 4]), name=st.sampled_from([op for op in OPS if op not in ("Color", "Contrast")]))
def test_other_channel_counts_change_each_channel_as_if_alone(images: Tensor, name: str) -> None:
    magnitude = np.mean(RANGES.get(name, (0, 0))) + 0.3
    draw = draw_op(name, np.full(len(images), magnitude), *images.shape[1:3])
    together = pixels(images, range(len(images)), draw, Policy())
    for channel in range(images.shape[3]):
        alone = pixels(images[..., channel, None].contiguous(), range(len(images)), draw, Policy())
        assert torch.equal(together[..., channel, None], alone)


def test_unknown_operation_and_steep_angle_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown operation 'Rotation': choose one of AutoContrast"):
        draw_op("Rotation", [1.0], 8, 8)
    with pytest.raises(ValueError, match="between -90 and 90"):
        draw_op("Rotate", [10.0, 90.0], 8, 8)
