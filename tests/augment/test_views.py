"""What the two rendering functions return and refuse."""

import numpy as np
import pytest
import torch
from torch import Tensor

from cotrain.augment import PRESETS, Policy, draw_plain, draw_strong, draw_weak, normalised, pixels
from cotrain.augment.views import _normalisation

from .pictures import picture

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]


@pytest.fixture
def images() -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(np.stack([picture("noise", 12, 10, 3, rng) for _ in range(5)]))


@pytest.mark.parametrize("path", ["kernel", "tensor"])
def test_normalised_is_the_formula_in_float32(path: str) -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(-1, -1, -1, 3).contiguous()
    made = normalised(levels, [0], draw_plain(1), Policy(), MEAN, STD, path=path)
    unit = np.arange(256, dtype=np.float32) / np.float32(255)
    for channel in range(3):
        expected = (unit - np.float32(MEAN[channel])) / np.float32(STD[channel])
        np.testing.assert_array_equal(made[0, channel].flatten().numpy(), expected)


@pytest.mark.parametrize(("scale", "exact"), [(1, True), (1e36, False)])
def test_arithmetic_replaces_the_table_only_where_it_gives_the_same(scale: float, exact: bool) -> None:
    std = [scale * value for value in STD]
    _, formula = _normalisation(tuple(MEAN), tuple(std))
    assert (formula.size > 0) == exact
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(-1, -1, -1, 3).contiguous()
    made, same = (
        normalised(levels, [0], draw_plain(1), Policy(), MEAN, std, path=path) for path in ("kernel", "tensor")
    )
    assert torch.equal(made, same)


@pytest.mark.parametrize("path", ["kernel", "tensor"])
def test_shapes_types_and_memory(images: Tensor, path: str) -> None:
    draw = draw_weak(Policy(), 4, 12, 10, np.random.default_rng(1))
    levels = pixels(images, [4, 0, 0, 1], draw, Policy(), path=path)
    assert levels.shape == (4, 12, 10, 3) and levels.dtype == torch.uint8 and levels.is_contiguous()
    made = normalised(images, [4, 0, 0, 1], draw, Policy(), MEAN, STD, path=path)
    assert made.shape == (4, 3, 12, 10) and made.dtype == torch.float32
    assert made.stride() == (360, 1, 30, 3) and made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("path", ["kernel", "tensor"])
def test_mid_grey_is_half_way_between_two_levels(images: Tensor, path: str) -> None:
    policy = Policy(operations=0, cutout="fixed")
    draw = draw_strong(policy, 1, 12, 10, np.random.default_rng(2))
    left, top, right, bottom = draw.boxes[0]
    assert (pixels(images, [3], draw, policy, path=path)[0, top:bottom, left:right] == 127).all()
    made = normalised(images, [3], draw, policy, MEAN, STD, path=path)[0, :, top:bottom, left:right]
    grey = (np.float32(0.5) - np.float32(MEAN)) / np.float32(STD)
    assert (made == torch.from_numpy(grey)[:, None, None]).all()


@pytest.mark.parametrize("path", ["kernel", "tensor"])
def test_no_views_at_all(images: Tensor, path: str) -> None:
    draw = draw_strong(PRESETS["fixmatch"], 0, 12, 10, np.random.default_rng(3))
    assert normalised(images, [], draw, PRESETS["fixmatch"], MEAN, STD, path=path).shape == (0, 3, 12, 10)


def test_rows_of_any_kind(images: Tensor) -> None:
    rows = [0, 2, 4]
    for form in (rows, range(0, 5, 2), np.array(rows), np.array(rows, np.int32), torch.tensor(rows)):
        assert torch.equal(pixels(images, form, draw_plain(3), Policy()), images[::2])


def test_images_and_draws_need_not_be_contiguous(images: Tensor) -> None:
    draw = draw_strong(PRESETS["paper"], 6, 10, 12, np.random.default_rng(4))[::2]
    turned = images.transpose(1, 2)
    made = pixels(turned, [0, 1, 2], draw, PRESETS["paper"])
    assert torch.equal(made, pixels(turned.contiguous(), [0, 1, 2], draw, PRESETS["paper"], path="tensor"))


@pytest.mark.parametrize("rows", [[-1], [5]])
def test_rows_outside_are_refused(images: Tensor, rows: list[int]) -> None:
    with pytest.raises(IndexError, match=r"rows must be in 0\.\.4"):
        pixels(images, rows, draw_plain(1), Policy())


def test_what_does_not_fit_is_refused(images: Tensor) -> None:
    with pytest.raises(ValueError, match="2 rows but a draw of 3 views"):
        pixels(images, [0, 1], draw_plain(3), Policy())
    with pytest.raises(ValueError, match="must be uint8 of shape"):
        pixels(images.float(), [0], draw_plain(1), Policy())
    with pytest.raises(ValueError, match="3 channels need as many means and stds, got 1 and 3"):
        normalised(images, [0], draw_plain(1), Policy(), [0.5], STD)
    for policy in (Policy(crop=0.9, cutout="none"), Policy(crop=0)):
        draw = draw_strong(policy, 50, 84, 84, np.random.default_rng(5))
        with pytest.raises(ValueError, match="draw was made for images larger than 12x10"):
            pixels(images, [0] * 50, draw, policy)
