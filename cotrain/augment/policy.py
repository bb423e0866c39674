"""Augmentation policies, and the random decisions for one batch of views.

All randomness is here, in vectorised numpy from one generator. `kernel.py` and `tensor.py` only apply a `Draw`, so
their results are bit-exact. The operations and ranges are RandAugment's, as in the paper's table and as in FixMatch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from cotrain.types import Settings, UserError

# These indices are compiled into kernel.py, whose cache does not notice a change here: edit that file too.
OPS = (
    "AutoContrast",
    "Brightness",
    "Color",
    "Contrast",
    "Equalize",
    "Identity",
    "Posterize",
    "Rotate",
    "Sharpness",
    "ShearX",
    "ShearY",
    "Solarize",
    "TranslateX",
    "TranslateY",
)
AUTO_CONTRAST, BRIGHTNESS, COLOR, CONTRAST, EQUALIZE, IDENTITY, POSTERIZE = range(7)
ROTATE, SHARPNESS, SHEAR_X, SHEAR_Y, SOLARIZE, TRANSLATE_X, TRANSLATE_Y = range(7, 14)

ENHANCERS = ("Brightness", "Color", "Contrast", "Sharpness")
GEOMETRIC = (ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y)
IS_GEOMETRIC = np.isin(np.arange(len(OPS)), GEOMETRIC)
IDENTITY_AFFINE = np.array([65536, 0, 32768, 0, 65536, 32768])
# FixMatch applies these to RGB and adds a new alpha channel, so areas that an earlier operation left empty stay black.
OPAQUE = (AUTO_CONTRAST, EQUALIZE, POSTERIZE, SOLARIZE)

PAPER_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(ENHANCERS, (0.05, 0.95)),
    "Posterize": (4, 8),
    "Rotate": (-30, 30),
    **dict.fromkeys(("ShearX", "ShearY", "TranslateX", "TranslateY"), (-0.3, 0.3)),
    "Solarize": (0, 256),
}
_PAPER_ENDS = np.array([PAPER_RANGES.get(name, (0, 0)) for name in OPS], np.float64).T.copy()
_LEVEL = np.arange(1, 10)
FIXMATCH_LEVELS: dict[str, NDArray] = {
    **dict.fromkeys(ENHANCERS, 1.8 * _LEVEL / 10 + 0.1),
    "Posterize": 4 - 4 * _LEVEL // 10,
    "Rotate": 3 * _LEVEL,
    **dict.fromkeys(("ShearX", "ShearY"), 0.3 * _LEVEL / 10),
    **dict.fromkeys(("TranslateX", "TranslateY"), _LEVEL),  # pixels
    "Solarize": 256 - 256 * _LEVEL // 10,
}

CUTOUT_RGB = (125, 123, 114)
CUTOUT_LUMA = 123

# FixMatch holds images as float32 in [-1, 1] and truncates them back to bytes before its operations.
_SIGNED = np.arange(256, dtype=np.float32) * np.float32(2 / 255) - 1
TRUNCATED = ((_SIGNED * 0.5 + 0.5) * 255).astype(np.uint8)


class Policy(Settings):
    """Settings of weak and strong views. `PRESETS` has the three combinations used in the literature."""

    advanced = frozenset({"fill", "magnitudes", "order", "pad", "probability", "truncate"})

    flip: bool = Field(True, description="flip half of the images horizontally")
    crop: float = Field(0.125, ge=0, lt=1, description="pad by this fraction of each side, then crop at random")
    pad: Literal["reflect", "zero"] = Field("reflect", description="padding before the crop")
    operations: int = Field(3, ge=0, description="operations per strong view, drawn with replacement")
    probability: float = Field(1.0, ge=0, le=1, description="probability that a drawn operation is applied")
    magnitudes: Literal["paper", "levels"] = Field(
        "paper",
        description="the paper's continuous ranges, or FixMatch's integer levels 1 to 9",
    )
    order: Literal["weak_first", "ops_first"] = Field(
        "weak_first",
        description="apply flip and crop before or after the operations and cutout",
    )
    fill: Literal["black", "grey"] = Field(
        "black",
        description="fills areas left empty by geometric operations; grey: filled at the end, as in FixMatch",
    )
    cutout: Literal["random", "fixed", "none"] = Field(
        "random", description="a box of random side up to half the width, FixMatch's box of half of each side, or none"
    )
    truncate: bool = Field(
        False,
        description="before the operations, lower the 47 pixel levels that FixMatch's float conversion lowers",
    )


PRESETS: dict[str, Policy] = {
    "paper": Policy(),
    "code": Policy(order="ops_first", pad="zero", cutout="none"),
    "fixmatch": Policy(operations=2, probability=0.5, magnitudes="levels", fill="grey", cutout="fixed", truncate=True),
}


@dataclass(frozen=True)
class Draw:
    """All random decisions for n views with up to k operations each; row i fully describes view i."""

    flip: NDArray[np.bool_]  # (n,)
    shift: NDArray[np.int64]  # (n, 2) offset in rows and columns of the crop's corner from the image's
    truncate: NDArray[np.bool_]  # (n,)
    ops: NDArray[np.int64]  # (n, k) indices into OPS
    magnitudes: NDArray[np.float64]  # (n, k)
    affines: NDArray[np.int64]  # (n, k, 6) see `fixed_point_affines`
    boxes: NDArray[np.int64]  # (n, 4) left, top, right, bottom of the cutout; right and bottom are exclusive

    def __len__(self) -> int:
        return len(self.flip)

    def __getitem__(self, views: slice) -> "Draw":
        return Draw(**{field.name: getattr(self, field.name)[views] for field in fields(self)})


def joined(draws: Sequence[Draw]) -> Draw:
    """Several draws, with equally many operations or none, as one."""
    most = max(draw.ops.shape[1] for draw in draws)
    same = [draw if draw.ops.shape[1] == most else _idle(draw, most) for draw in draws]
    return Draw(**{field.name: np.concatenate([getattr(draw, field.name) for draw in same]) for field in fields(Draw)})


def _idle(draw: Draw, operations: int) -> Draw:
    """A draw without operations, written as one with several that change nothing."""
    shape = (len(draw), operations)
    affines = np.broadcast_to(IDENTITY_AFFINE, (*shape, 6))
    return replace(draw, ops=np.full(shape, IDENTITY), magnitudes=np.zeros(shape), affines=affines)


def draw_plain(n: int) -> Draw:
    """No change to the images."""
    return Draw(
        flip=np.zeros(n, np.bool_),
        shift=np.zeros((n, 2), np.int64),
        truncate=np.zeros(n, np.bool_),
        ops=np.zeros((n, 0), np.int64),
        magnitudes=np.zeros((n, 0)),
        affines=np.zeros((n, 0, 6), np.int64),
        boxes=np.zeros((n, 4), np.int64),
    )


def draw_op(name: str, magnitudes: ArrayLike, height: int, width: int) -> Draw:
    """A single operation, with one view per magnitude."""
    if name not in OPS:
        raise ValueError(f"unknown operation {name!r}: choose one of {', '.join(OPS)}")
    column = np.asarray(magnitudes, np.float64).reshape(-1, 1)
    if name == "Rotate" and np.any(np.abs(column) >= 90):
        raise ValueError("Rotate supports angles between -90 and 90 degrees, exclusive")
    return _with_operations(draw_plain(len(column)), np.full(column.shape, OPS.index(name)), column, height, width)


def draw_weak(policy: Policy, n: int, height: int, width: int, rng: np.random.Generator) -> Draw:
    """Flip and crop only."""
    padding = _padding(policy.crop, height, width)
    reach = padding if height != width else padding[0]  # draws the same numbers, but faster
    return replace(
        draw_plain(n),
        flip=(rng.random(n) < 0.5) & policy.flip,
        shift=rng.integers(-reach, reach, size=(n, 2), endpoint=True),
    )


def draw_strong(policy: Policy, n: int, height: int, width: int, rng: np.random.Generator) -> Draw:
    """Flip, crop, operations and cutout."""
    weak = draw_weak(policy, n, height, width, rng)
    ops = rng.integers(len(OPS), size=(n, policy.operations))
    if policy.magnitudes == "paper":
        magnitudes = _paper_magnitudes(ops, rng)
    else:
        magnitudes = _fixmatch_magnitudes(ops, height, width, rng)
    applied = np.where(rng.random(ops.shape) < policy.probability, ops, IDENTITY)
    draw = replace(weak, truncate=np.full(n, policy.truncate))
    if policy.cutout == "random":
        draw = replace(draw, boxes=_random_boxes(n, height, width, rng))
    elif policy.cutout == "fixed":
        draw = replace(draw, boxes=_fixed_boxes(n, height, width, rng))
    return _with_operations(draw, applied, magnitudes, height, width)


def fixed_point_affines(
    ops: NDArray[np.int64], magnitudes: NDArray[np.float64], height: int, width: int
) -> NDArray[np.int64]:
    """Pillow's 16.16 fixed-point coefficients (a, b, c, d, e, f) per operation; the identity if it is not geometric.

    Output pixel (x, y) shows the input pixel in column (a*x + b*y + c) >> 16 and row (d*x + e*y + f) >> 16.
    """

    moving = np.flatnonzero(IS_GEOMETRIC[ops])
    op, magnitude = ops.flat[moving], magnitudes.flat[moving]

    def only(wanted: int, values: NDArray) -> NDArray:
        return np.where(op == wanted, values, 0.0)

    angle = -np.radians(only(ROTATE, magnitude % 360.0))
    cos, sin = np.round(np.cos(angle), 15), np.round(np.sin(angle), 15)
    a, b = cos, sin + only(SHEAR_X, magnitude)
    d, e = -sin + only(SHEAR_Y, magnitude), cos
    # A rotation keeps the centre fixed; Pillow rounds translations to whole pixels.
    c = cos * (-width / 2) + sin * (-height / 2) + width / 2
    f = -sin * (-width / 2) + cos * (-height / 2) + height / 2
    c += only(TRANSLATE_X, np.floor(magnitude * width + 0.5))
    f += only(TRANSLATE_Y, np.floor(magnitude * height + 0.5))
    at_pixel_centres = np.stack([a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5], axis=-1)
    affines = np.tile(IDENTITY_AFFINE, (ops.size, 1))
    affines[moving] = np.floor(at_pixel_centres * 65536.0 + 0.5)
    return affines.reshape(*ops.shape, 6)


def _with_operations(
    draw: Draw, ops: NDArray[np.int64], magnitudes: NDArray[np.float64], height: int, width: int
) -> Draw:
    return replace(draw, ops=ops, magnitudes=magnitudes, affines=fixed_point_affines(ops, magnitudes, height, width))


def _padding(crop: float, height: int, width: int) -> NDArray[np.int64]:
    """Rows and columns added on each side."""
    padding = np.array([int(crop * height), int(crop * width)])
    if crop > 0 and not padding.all():
        raise UserError(
            f"images of {height}x{width} are too small for augment.crop={crop:g}; "
            f"use images of at least {math.ceil(1 / crop)} pixels per side, or set augment.crop=0"
        )
    return padding


def _paper_magnitudes(ops: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    low, high = _PAPER_ENDS
    return low[ops] + (high - low)[ops] * rng.random(ops.shape)


def _fixmatch_magnitudes(
    ops: NDArray[np.int64], height: int, width: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    values = np.array([FIXMATCH_LEVELS.get(name, np.zeros(9)) for name in OPS], np.float64)
    values[TRANSLATE_X] /= width
    values[TRANSLATE_Y] /= height
    magnitudes = values[ops, rng.integers(9, size=ops.shape)]
    negative = IS_GEOMETRIC[ops] & (rng.random(ops.shape) < 0.5)
    return np.where(negative, -magnitudes, magnitudes)


def _random_boxes(n: int, height: int, width: int, rng: np.random.Generator) -> NDArray[np.int64]:
    side = 0.5 * rng.random((n, 1)) * width
    centre = rng.random((n, 2)) * [width, height]
    return shifted_boxes(side, centre, height, width)


def shifted_boxes(side: NDArray[np.float64], centre: NDArray[np.float64], height: int, width: int) -> NDArray[np.int64]:
    """The paper's Cutout: shifted into the image at the left and top, clipped at the right and bottom."""
    size = np.array([width, height])
    first = np.maximum(0, centre - side / 2).astype(np.int64)
    last = np.minimum(size, first + side).astype(np.int64)  # inclusive, as in Pillow's rectangle
    return np.where(side > 0, np.hstack([first, np.minimum(last + 1, size)]), 0)


def _fixed_boxes(n: int, height: int, width: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """FixMatch's Cutout: half of each side, clipped at all four borders."""
    size = np.array([width, height])
    centre = rng.integers(size, size=(n, 2))
    return np.hstack([np.maximum(0, centre - size // 4), np.minimum(size, centre + size // 4)])
