"""Whole views equal Pillow's, whatever the policy; the two paths, any slice and any number of threads agree."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.step.pillow import recipes, view
from cotrain.augment import PRESETS, Draw, Policy, draw_plain, draw_strong, draw_weak, normalised, pixels

from .pictures import KINDS, batches, picture

SIZES = [(8, 8), (9, 16), (16, 9), (32, 32), (33, 31)]
SEEDS = st.integers(0, 2**32 - 1)
POLICIES = st.builds(
    Policy,
    flip=st.booleans(),
    crop=st.sampled_from([0, 0.125, 0.3, 0.9]),
    pad=st.sampled_from(["reflect", "zero"]),
    operations=st.integers(0, 5),
    probability=st.sampled_from([0.5, 1]),
    magnitudes=st.sampled_from(["paper", "levels"]),
    order=st.sampled_from(["weak_first", "ops_first"]),
    fill=st.sampled_from(["black", "grey"]),
    cutout=st.sampled_from(["random", "fixed", "none"]),
    truncate=st.booleans(),
)


def by_pillow(images: Tensor, rows: list[int], draw: Draw, policy: Policy) -> tuple[Tensor, Tensor]:
    """Levels (n, H, W, C) with 127 for mid-grey, and where that is (n, H, W)."""
    levels, hidden = np.empty((len(rows), *images.shape[1:]), np.uint8), np.zeros((len(rows), *images.shape[1:3]), bool)
    for i, (row, recipe) in enumerate(zip(rows, recipes(draw), strict=True)):
        levels[i], mask = view(images[row].numpy(), recipe, policy)
        if mask is not None:
            hidden[i] = mask
    levels[hidden] = 127
    return torch.from_numpy(levels), torch.from_numpy(hidden)


def assert_equals_pillow(images: Tensor, rows: list[int], draw: Draw, policy: Policy) -> None:
    levels, hidden = by_pillow(images, rows, draw, policy)
    channels = images.shape[3]
    mean, std = [0.49, 0.48, 0.45][:channels], [0.25, 0.24, 0.26][:channels]
    unit = levels.numpy().astype(np.float32) / np.float32(255)
    unit[hidden.numpy()] = 0.5
    expected = torch.from_numpy((unit - np.float32(mean)) / np.float32(std)).permute(0, 3, 1, 2)
    for path in ("kernel", "tensor"):
        assert torch.equal(pixels(images, rows, draw, policy, path=path), levels), path
        assert torch.equal(normalised(images, rows, draw, policy, mean, std, path=path), expected), path


@pytest.mark.no_cover  # test_any_policy covers the same lines
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str, flip: bool, channels: int) -> None:
    policy = PRESETS[preset].model_copy(update={"flip": flip})
    rng = np.random.default_rng(3)
    for side, n in ((32, 250), (84, 30)):
        images = torch.from_numpy(np.stack([picture(kind, side, side, channels, rng) for kind in KINDS * 4]))
        rows = rng.integers(len(images), size=n).tolist()
        assert_equals_pillow(images, rows, draw_strong(policy, n, side, side, rng), policy)
        assert_equals_pillow(images, rows, draw_weak(policy, n, side, side, rng), policy)


@settings(max_examples=150, deadline=None)
@given(images=batches(channels=[1, 3], sizes=SIZES), policy=POLICIES, seed=SEEDS)
def test_any_policy(images: Tensor, policy: Policy, seed: int) -> None:
    rows = [3, 0, 2, 1, 3, 0]
    draw = draw_strong(policy, len(rows), *images.shape[1:3], np.random.default_rng(seed))
    assert_equals_pillow(images, rows, draw, policy)


@pytest.mark.no_cover  # test_any_policy covers the same lines
@settings(max_examples=60, deadline=None)
@given(images=batches(channels=[2, 4], sizes=SIZES), policy=POLICIES, seed=SEEDS)
def test_paths_agree_on_other_channel_counts(images: Tensor, policy: Policy, seed: int) -> None:
    rows = [3, 0, 2, 1, 3, 0]
    draw = draw_strong(policy, len(rows), *images.shape[1:3], np.random.default_rng(seed))
    by_kernel = pixels(images, rows, draw, policy, path="kernel")
    assert torch.equal(by_kernel, pixels(images, rows, draw, policy, path="tensor"))


@pytest.mark.no_cover  # test_any_policy covers the same lines
@settings(max_examples=30, deadline=None)
@given(
    images=batches(channels=[1, 3], sizes=SIZES), policy=POLICIES, seed=SEEDS, cut=st.tuples(*[st.integers(0, 12)] * 2)
)
def test_a_slice_of_a_draw_makes_that_slice_of_the_views(
    images: Tensor, policy: Policy, seed: int, cut: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    rows, part = rng.integers(len(images), size=12), slice(*sorted(cut))
    draw = draw_strong(policy, len(rows), *images.shape[1:3], rng)
    for path in ("kernel", "tensor"):
        whole = pixels(images, rows, draw, policy, path=path)
        assert torch.equal(pixels(images, rows[part], draw[part], policy, path=path), whole[part])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("threads", [2, 3, 16])
def test_threads_change_nothing(preset: str, threads: int) -> None:
    policy, rng = PRESETS[preset], np.random.default_rng(4)
    images = torch.from_numpy(np.stack([picture("noise", 16, 16, 3, rng) for _ in range(13)]))
    draw = draw_strong(policy, len(images), 16, 16, rng)
    alone = pixels(images, range(13), draw, policy)
    assert torch.equal(pixels(images, range(13), draw, policy, threads=threads), alone)


def test_plain_draw_is_the_image_itself() -> None:
    images = torch.from_numpy(picture("noise", 6, 7, 3, np.random.default_rng(5)))[None]
    for policy in PRESETS.values():
        for path in ("kernel", "tensor"):
            assert torch.equal(pixels(images, [0, 0], draw_plain(2), policy, path=path), images[[0, 0]])
