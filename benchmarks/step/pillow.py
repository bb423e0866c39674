"""Views made by Pillow, one image at a time: the reference of the tests, and the rival of the benchmarks.

A view is an image, uint8 (H, W, C), and a mask of the pixels that FixMatch's mid-grey covers, bool (H, W).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from cotrain.augment import OPS, Draw, Policy

NEEDS_RGB = ("AutoContrast", "Equalize", "Posterize", "Solarize")


@dataclass(frozen=True)
class Recipe:
    """The row of a Draw for one view, as plain Python values."""

    flip: bool
    shift: tuple[int, int]
    truncate: bool
    ops: list[tuple[str, float]]
    box: tuple[int, int, int, int]


def recipes(draw: Draw) -> list[Recipe]:
    names = [[OPS[op] for op in ops] for ops in draw.ops.tolist()]
    ops = [list(zip(*pair, strict=True)) for pair in zip(names, draw.magnitudes.tolist(), strict=True)]
    return [
        Recipe(*values)
        for values in zip(
            draw.flip.tolist(), draw.shift.tolist(), draw.truncate.tolist(), ops, draw.boxes.tolist(), strict=True
        )
    ]


def view(array: NDArray, recipe: Recipe, policy: Policy) -> tuple[NDArray, NDArray | None]:
    if policy.order == "weak_first":
        array = crop(array, recipe, policy)
    image = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    if recipe.truncate:
        signed = np.asarray(image, np.float32) * np.float32(2 / 255) - np.float32(1)
        image = Image.fromarray(np.uint8((signed * np.float32(0.5) + np.float32(0.5)) * np.float32(255)))
    if policy.fill == "grey":
        image = image.convert(image.mode + "A")
    for name, magnitude in recipe.ops:
        image = apply_in_rgb(image, name, magnitude) if name in NEEDS_RGB else apply(image, name, magnitude)
    image, hidden = split_alpha(image)
    left, top, right, bottom = recipe.box
    if right > left and policy.cutout == "fixed":
        hidden = np.zeros((image.height, image.width), bool) if hidden is None else hidden
        hidden[top:bottom, left:right] = True
    elif right > left:
        grey = (125, 123, 114) if image.mode == "RGB" else 123
        ImageDraw.Draw(image).rectangle((left, top, right - 1, bottom - 1), grey)
        if hidden is not None:
            hidden[top:bottom, left:right] = False
    levels = np.asarray(image).reshape(array.shape)
    if policy.order == "ops_first":
        levels = crop(levels, recipe, policy)
        hidden = None if hidden is None else crop(hidden[..., None], recipe, policy)[..., 0]
    return levels, hidden


def normalised_by_pillow(
    images: Tensor,
    rows: NDArray,
    known: Sequence[Recipe],
    policy: Policy,
    mean: Sequence[float],
    std: Sequence[float],
) -> Tensor:
    """Views of images[rows] as float32 (n, C, H, W), equal to `cotrain.augment.normalised` except for rounding."""
    arrays = images.cpu().numpy()
    out = np.empty((len(rows), images.shape[3], *images.shape[1:3]), np.float32)
    scale, offset = (
        np.array(values, np.float32)[:, None, None] for values in (1 / (255 * np.array(std)), np.divide(mean, std))
    )
    for row, recipe, slot in zip(rows, known, out, strict=True):
        levels, hidden = view(arrays[row], recipe, policy)
        np.multiply(levels.transpose(2, 0, 1), scale, out=slot)
        if hidden is not None:
            slot[:, hidden] = 127.5 * scale[:, 0]
        np.subtract(slot, offset, out=slot)
    return torch.from_numpy(out)


def crop(array: NDArray, recipe: Recipe, policy: Policy) -> NDArray:
    """Flip, then pad and crop."""
    height, width, _ = array.shape
    down, right = recipe.shift
    rows, columns = padded(height)[height + down :][:height], padded(width)[width + right :][:width]
    if policy.pad == "reflect":
        return array.take(rows, 0).take(width - 1 - columns if recipe.flip else columns, 1)
    image = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    if recipe.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image.crop((right, down, right + width, down + height))).reshape(array.shape)


@cache
def padded(side: int) -> NDArray:
    return np.pad(np.arange(side), side, mode="reflect")


def apply_in_rgb(image: Image.Image, name: str, magnitude: float) -> Image.Image:
    """Apply an operation that does not support alpha; afterwards every pixel is opaque."""
    if not image.mode.endswith("A"):
        return apply(image, name, magnitude)
    return apply(image.convert(image.mode[:-1]), name, magnitude).convert(image.mode)


def split_alpha(image: Image.Image) -> tuple[Image.Image, NDArray | None]:
    if not image.mode.endswith("A"):
        return image, None
    return image.convert(image.mode[:-1]), np.asarray(image.getchannel("A")) == 0


def apply(image: Image.Image, name: str, magnitude: float) -> Image.Image:
    return APPLY[name](image, magnitude)


def affine(image: Image.Image, *coefficients: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients)


APPLY = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "Color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "Contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Identity": lambda image, _: image,
    "Posterize": lambda image, v: ImageOps.posterize(image, int(v)),
    "Rotate": lambda image, v: image.rotate(v),
    "Sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "ShearX": lambda image, v: affine(image, 1, v, 0, 0, 1, 0),
    "ShearY": lambda image, v: affine(image, 1, 0, 0, v, 1, 0),
    "Solarize": lambda image, v: ImageOps.solarize(image, v),
    "TranslateX": lambda image, v: affine(image, 1, 0, v * image.width, 0, 1, 0),
    "TranslateY": lambda image, v: affine(image, 1, 0, 0, 0, 1, v * image.height),
}
