"""The laws of the random decisions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from pydantic import ValidationError

from cotrain.augment import OPS, PRESETS, Policy, draw_op, draw_strong, draw_weak
from cotrain.augment.policy import GEOMETRIC, TRUNCATED, Draw, shifted_boxes

N = 20_000


def strong(policy: Policy, height: int = 32, width: int = 32, seed: int = 0, n: int = N) -> Draw:
    return draw_strong(policy, n, height, width, np.random.default_rng(seed))


def magnitudes_of(draw: Draw, name: str) -> np.ndarray:
    return draw.magnitudes[draw.ops == OPS.index(name)]


def area(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_generator_state_draws_the_same(preset: str) -> None:
    one, same, other = (strong(PRESETS[preset], seed=seed, n=50) for seed in (7, 7, 8))
    for field in one.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one, field), getattr(same, field))
    assert not np.array_equal(one.magnitudes, other.magnitudes)


def test_flip_and_crop_are_uniform() -> None:
    draw = draw_weak(Policy(), N, 32, 64, np.random.default_rng(0))
    assert abs(draw.flip.mean() - 0.5) < 0.02
    for axis, pad in ((0, 4), (1, 8)):
        shifts, counts = np.unique(draw.shift[:, axis], return_counts=True)
        np.testing.assert_array_equal(shifts, np.arange(-pad, pad + 1))
        np.testing.assert_allclose(counts / N, 1 / (2 * pad + 1), rtol=0.15)
    still = draw_weak(Policy(flip=False, crop=0), 100, 1, 1, np.random.default_rng(0))
    assert not still.flip.any() and not still.shift.any()


def test_operations_are_uniform_and_independent() -> None:
    draw = strong(PRESETS["paper"])
    assert draw.ops.shape == (N, 3)
    np.testing.assert_allclose(np.bincount(draw.ops.ravel(), minlength=14) / draw.ops.size, 1 / 14, rtol=0.08)
    assert abs((draw.ops[:, 0] == draw.ops[:, 1]).mean() - 1 / 14) < 0.01


def test_probability_leaves_the_others_alone() -> None:
    draw = strong(PRESETS["fixmatch"])
    assert draw.ops.shape == (N, 2)
    assert abs((draw.ops == OPS.index("Identity")).mean() - (0.5 + 0.5 / 14)) < 0.01
    assert (strong(Policy(probability=0)).ops == OPS.index("Identity")).all()


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_paper_magnitudes_fill_their_ranges(preset: str) -> None:
    draw = strong(PRESETS[preset])
    ranges = {
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), (0.05, 0.95)),
        **dict.fromkeys(("ShearX", "ShearY", "TranslateX", "TranslateY"), (-0.3, 0.3)),
        "Rotate": (-30, 30),
        "Solarize": (0, 256),
        "Posterize": (4, 8),
    }
    for name, (low, high) in ranges.items():
        drawn = magnitudes_of(draw, name)
        assert low <= drawn.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < drawn.max() < high
        assert abs(drawn.mean() - (low + high) / 2) < 0.02 * (high - low)
    assert set(magnitudes_of(draw, "Posterize").astype(int)) == {4, 5, 6, 7}


def test_fixmatch_magnitudes_are_its_levels() -> None:
    draw = strong(PRESETS["fixmatch"], height=64, width=32)
    levels = np.arange(1, 10)
    both_signs = np.concatenate([-levels[::-1], levels])
    expected = {
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.1 + 0.18 * levels),
        "Rotate": 3 * both_signs,
        "ShearX": 0.03 * both_signs,
        "ShearY": 0.03 * both_signs,
        "TranslateX": both_signs / 32,
        "TranslateY": both_signs / 64,
        "Posterize": [1, 2, 3, 4],
        "Solarize": [26, 52, 77, 103, 128, 154, 180, 205, 231],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(np.unique(magnitudes_of(draw, name)), values, rtol=1e-12)
    counts = np.bincount(magnitudes_of(draw, "Posterize").astype(int))[1:]
    np.testing.assert_allclose(counts / counts.sum(), [2 / 9, 3 / 9, 2 / 9, 2 / 9], atol=0.04)


def test_translations_by_levels_are_whole_pixels() -> None:
    for side in range(1, 130):
        draw = strong(PRESETS["fixmatch"].model_copy(update={"crop": 0}), side, side, n=300)
        moved = draw.affines[draw.ops == OPS.index("TranslateX")][:, 2]
        pixels = np.rint(magnitudes_of(draw, "TranslateX") * side).astype(int)
        np.testing.assert_array_equal(moved, pixels * 65536 + 32768)
        assert set(np.abs(pixels)) <= set(range(1, 10))


def test_only_geometry_moves_pixels() -> None:
    draw = strong(PRESETS["paper"], 20, 30)
    identity = [65536, 0, 32768, 0, 65536, 32768]
    still = (draw.affines == identity).all(-1)
    assert still[~np.isin(draw.ops, GEOMETRIC)].all()
    assert still[np.isin(draw.ops, GEOMETRIC)].mean() < 0.1


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)), share=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 3)
)
def test_random_cutout_paints_pillows_rectangle(size: tuple[int, int], share: tuple[float, float, float]) -> None:
    height, width = size
    side, cx, cy = 0.5 * share[0] * width, share[1] * width, share[2] * height
    expected = Image.new("L", (width, height))
    if side > 0:
        x0, y0 = int(max(0, cx - side / 2)), int(max(0, cy - side / 2))
        corners = (x0, y0, min(width, x0 + side), min(height, y0 + side))
        ImageDraw.Draw(expected).rectangle([int(corner) for corner in corners], 255)
    (left, top, right, bottom), *_ = shifted_boxes(np.array([[side]]), np.array([[cx, cy]]), height, width)
    painted = np.zeros((height, width), bool)
    painted[top:bottom, left:right] = True
    np.testing.assert_array_equal(painted, np.asarray(expected) == 255)


def test_random_cutout_is_shifted_at_the_left_and_top_and_shortened_at_the_right_and_bottom() -> None:
    boxes = strong(PRESETS["paper"]).boxes
    left, top, right, bottom = boxes.T
    whole = (right < 32) & (bottom < 32)
    np.testing.assert_array_equal((right - left)[whole], (bottom - top)[whole])
    assert (whole & (left == 0)).any() and (whole & (top == 0)).any()
    cut = (right == 32) & (bottom < 32)
    assert ((right - left)[cut] <= (bottom - top)[cut]).all() and ((right - left)[cut] < (bottom - top)[cut]).any()
    assert area(boxes).min() >= 1 and (right - left).max() == 16
    assert abs(area(boxes).mean() / 32**2 - 0.083) < 0.002


def test_fixed_cutout_is_clipped_at_all_borders() -> None:
    boxes = strong(PRESETS["fixmatch"]).boxes
    assert abs(area(boxes).mean() / 32**2 - 0.191) < 0.002
    sides = np.unique(boxes[:, 2:] - boxes[:, :2])
    np.testing.assert_array_equal(sides, np.arange(8, 17))
    left, right = boxes[:, 0], boxes[:, 2]
    assert (right - left == 16)[(left > 0) & (right < 32)].all()
    assert not strong(PRESETS["code"]).boxes.any()


def test_fixmatchs_float_trip_lowers_47_levels_by_one() -> None:
    lowered = np.arange(256) - TRUNCATED
    assert np.bincount(lowered).tolist() == [209, 47]
    assert strong(PRESETS["fixmatch"], n=5).truncate.all()
    assert not strong(PRESETS["paper"], n=5).truncate.any()
    assert not draw_weak(PRESETS["fixmatch"], 5, 32, 32, np.random.default_rng(0)).truncate.any()


def test_images_too_small_for_the_crop_are_refused() -> None:
    with pytest.raises(ValueError) as error:
        draw_weak(Policy(), 1, 6, 6, np.random.default_rng(0))
    assert str(error.value) == (
        "images of 6x6 are too small for augment.crop=0.125; "
        "use images of at least 8 pixels per side, or set augment.crop=0"
    )
    draw_weak(Policy(), 1, 8, 8, np.random.default_rng(0))
    draw_weak(Policy(crop=0), 1, 6, 6, np.random.default_rng(0))


def test_a_slice_is_a_draw() -> None:
    draw = strong(PRESETS["paper"], n=10)
    part = draw[2:5]
    assert len(part) == 3
    for field in draw.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(part, field), getattr(draw, field)[2:5])
    assert len(draw_op("Rotate", [1, 2, 3], 8, 8)[1:]) == 2


def test_settings_are_frozen_checked_and_described() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Policy(rotate=True)
    with pytest.raises(ValidationError, match="frozen"):
        Policy().flip = False
    for wrong in ({"crop": 1.0}, {"crop": -0.1}, {"operations": -1}, {"probability": 1.5}, {"pad": "black"}):
        with pytest.raises(ValidationError):
            Policy(**wrong)
    assert all(field.description for field in Policy.model_fields.values())
    assert PRESETS["paper"] == Policy()
