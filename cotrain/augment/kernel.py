"""Views on the CPU: one compiled loop over the images of a batch, equal to Pillow in every bit.

A picture is a (H, W, C) array of levels 0..255. Beside it goes `shown`, (H, W, 1): zero where the view has nothing
to show, so that mid-grey is painted there at the end. Nothing is allocated per image.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cotrain.augment.policy import (
    AUTO_CONTRAST,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    EQUALIZE,
    GEOMETRIC,
    OPAQUE,
    POSTERIZE,
    SHARPNESS,
    SOLARIZE,
    TRUNCATED,
    Draw,
    Policy,
)

compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


def render(
    images: NDArray, rows: NDArray, draw: Draw, policy: Policy, cutout: NDArray, table: NDArray, threads: int
) -> NDArray:
    """The views of images[rows], written through `table` (C, 257): one entry for each level, the last for mid-grey."""
    out = np.empty((len(rows), *images.shape[1:]), table.dtype)
    style = (policy.pad == "reflect", policy.order == "ops_first", policy.fill == "grey", policy.cutout == "fixed")

    def render_part(part: slice) -> None:
        decisions = tuple(getattr(draw[part], field.name) for field in fields(Draw))
        _render(images, rows[part], decisions, style, cutout, table, out[part])

    if threads == 1:
        render_part(slice(0, len(rows)))
        return out
    ends = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(render_part, map(slice, ends, ends[1:])))
    return out


@compiled
def _render(images: Any, rows: Any, draw: Any, style: Any, cutout: Any, table: Any, out: Any) -> None:
    """Write view i of images[rows[i]] to out[i].

    `table` (C, 257) is what to write for each level, and last for mid-grey.
    """
    flip, shift, truncate, ops, magnitudes, affines, boxes = draw
    reflect, crop_last, grey_fill, grey_box = style
    _, height, width, channels = images.shape
    picture = np.empty((height, width, channels), np.uint8)
    spare = np.empty((height, width, channels), np.uint8)
    shown = np.empty((height, width, 1), np.uint8)
    spare_shown = np.empty((height, width, 1), np.uint8)
    all_rows, all_columns = np.arange(height), np.arange(width)
    crop_rows, crop_columns = np.empty(height, np.int64), np.empty(width, np.int64)
    counts = np.empty((channels, 256), np.int64)
    levels = np.empty((channels, 256), np.uint8)
    masked = grey_fill or grey_box
    for i in range(len(rows)):
        source = images[rows[i]]
        find_crop(shift[i, 0], False, reflect, crop_rows)
        find_crop(shift[i, 1], flip[i], reflect, crop_columns)
        if ops.shape[1] == 0 and boxes[i, 2] == 0 and not truncate[i]:
            write(source, crop_rows, crop_columns, table, out[i])
            continue
        if crop_last:
            read(source, all_rows, all_columns, picture)
        else:
            read(source, crop_rows, crop_columns, picture)
        shown[:] = 1
        if truncate[i]:
            for c in range(channels):
                levels[c] = TRUNCATED
            look_up(levels, picture)
        for k in range(ops.shape[1]):
            op = ops[i, k]
            magnitude = magnitudes[i, k]
            if op in GEOMETRIC:
                transform(affines[i, k], picture, spare)
                picture, spare = spare, picture
                if grey_fill:
                    transform(affines[i, k], shown, spare_shown)
                    shown, spare_shown = spare_shown, shown
            elif op == SHARPNESS:
                sharpen(np.float32(magnitude), picture, spare)
                picture, spare = spare, picture
            elif op == BRIGHTNESS:
                blend_with_level(0, np.float32(magnitude), picture)
            elif op == CONTRAST:
                blend_with_level(mean_luma(picture), np.float32(magnitude), picture)
            elif op == COLOR:
                blend_with_luma(np.float32(magnitude), picture)
            elif op == POSTERIZE:
                posterize(int(magnitude), picture)
            elif op == SOLARIZE:
                solarize(int(np.ceil(magnitude)), picture)
            elif op == AUTO_CONTRAST:
                autocontrast_levels(picture, levels)
                look_up(levels, picture)
            elif op == EQUALIZE:
                equalize_levels(picture, counts, levels)
                look_up(levels, picture)
            if op in OPAQUE:
                shown[:] = 1
        left, top, right, bottom = boxes[i]
        if grey_box:
            shown[top:bottom, left:right] = 0
        else:
            shown[top:bottom, left:right] = 1
            for c in range(channels):
                picture[top:bottom, left:right, c] = cutout[c]
        if crop_last:
            write(picture, crop_rows, crop_columns, table, out[i])
            if masked:
                write_grey(shown, crop_rows, crop_columns, table, out[i])
        else:
            write(picture, all_rows, all_columns, table, out[i])
            if masked:
                write_grey(shown, all_rows, all_columns, table, out[i])


@compiled
def find_crop(shift: int, flip: bool, reflect: bool, found: Any) -> None:
    side = len(found)
    for j in range(side):
        at = j + shift
        if reflect:
            if at < 0:
                at = -at
            elif at >= side:
                at = 2 * (side - 1) - at
        if at < 0 or at >= side:
            found[j] = -1
        elif flip:
            found[j] = side - 1 - at
        else:
            found[j] = at


@compiled
def read(source: Any, rows: Any, columns: Any, picture: Any) -> None:
    height, width, channels = source.shape
    for y in range(height):
        for x in range(width):
            if rows[y] < 0 or columns[x] < 0:
                for c in range(channels):
                    picture[y, x, c] = 0
            else:
                for c in range(channels):
                    picture[y, x, c] = source[rows[y], columns[x], c]


@compiled
def write(picture: Any, rows: Any, columns: Any, table: Any, out: Any) -> None:
    height, width, channels = picture.shape
    for y in range(height):
        for x in range(width):
            if rows[y] < 0 or columns[x] < 0:
                for c in range(channels):
                    out[y, x, c] = table[c, 0]
            else:
                for c in range(channels):
                    out[y, x, c] = table[c, picture[rows[y], columns[x], c]]


@compiled
def write_grey(shown: Any, rows: Any, columns: Any, table: Any, out: Any) -> None:
    height, width, channels = out.shape
    for y in range(height):
        for x in range(width):
            if rows[y] >= 0 and columns[x] >= 0 and shown[rows[y], columns[x], 0] == 0:
                for c in range(channels):
                    out[y, x, c] = table[c, 256]


@compiled
def look_up(levels: Any, picture: Any) -> None:
    height, width, channels = picture.shape
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                picture[y, x, c] = levels[c, picture[y, x, c]]


@compiled
def posterize(bits: int, picture: Any) -> None:
    flat = picture.reshape(-1)
    mask = np.uint8(256 - (1 << (8 - bits)))
    for i in range(flat.size):
        flat[i] &= mask


@compiled
def solarize(threshold: int, picture: Any) -> None:
    flat = picture.reshape(-1)
    for i in range(flat.size):
        if flat[i] >= threshold:
            flat[i] = 255 - flat[i]


@compiled
def blend(degenerate: int, level: int, factor: float) -> int:
    base = np.float32(degenerate)
    mixed = base + factor * (np.float32(level) - base)
    return np.uint8(np.int32(min(max(mixed, np.float32(0)), np.float32(255))))


@compiled
def blend_with_level(level: int, factor: float, picture: Any) -> None:
    flat = picture.reshape(-1)
    for i in range(flat.size):
        flat[i] = blend(level, flat[i], factor)


@compiled
def luma(picture: Any, y: int, x: int) -> int:
    channels = picture.shape[2]
    if channels == 3:
        red, green, blue = picture[y, x, 0], picture[y, x, 1], picture[y, x, 2]
        return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    total = 0
    for c in range(channels):
        total += picture[y, x, c]
    return (2 * total + channels) // (2 * channels)


@compiled
def mean_luma(picture: Any) -> int:
    height, width, _ = picture.shape
    total = 0
    for y in range(height):
        for x in range(width):
            total += luma(picture, y, x)
    pixels = height * width
    return (2 * total + pixels) // (2 * pixels)


@compiled
def blend_with_luma(factor: float, picture: Any) -> None:
    height, width, channels = picture.shape
    for y in range(height):
        for x in range(width):
            grey = luma(picture, y, x)
            for c in range(channels):
                picture[y, x, c] = blend(grey, picture[y, x, c], factor)


@compiled
def autocontrast_levels(picture: Any, levels: Any) -> None:
    height, width, channels = picture.shape
    for c in range(channels):
        low, high = 255, 0
        for y in range(height):
            for x in range(width):
                level = picture[y, x, c]
                low = min(low, level)
                high = max(high, level)
        if high <= low:
            for i in range(256):
                levels[c, i] = i
        else:
            scale = 255.0 / (high - low)
            offset = -low * scale
            for i in range(256):
                levels[c, i] = int(min(max(i * scale + offset, 0.0), 255.0))


@compiled
def equalize_levels(picture: Any, counts: Any, levels: Any) -> None:
    height, width, channels = picture.shape
    counts[:] = 0
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                counts[c, picture[y, x, c]] += 1
    for c in range(channels):
        highest = 255
        while counts[c, highest] == 0:
            highest -= 1
        step = (height * width - counts[c, highest]) // 255
        below = step // 2
        for i in range(256):
            if step == 0:
                levels[c, i] = i
            else:
                levels[c, i] = min(255, below // step)
                below += counts[c, i]


@compiled
def sharpen(factor: float, picture: Any, target: Any) -> None:
    height, width, channels = picture.shape
    target[:] = picture
    if height < 3 or width < 3:
        return
    for y in range(1, height - 1):
        above = picture[y - 1].reshape(-1)
        here = picture[y].reshape(-1)
        under = picture[y + 1].reshape(-1)
        result = target[y].reshape(-1)
        for i in range(channels, (width - 1) * channels):
            left = above[i - channels] + here[i - channels] + under[i - channels]
            right = above[i + channels] + here[i + channels] + under[i + channels]
            total = left + right + above[i] + 5 * here[i] + under[i]
            result[i] = blend((total + 6) // 13, here[i], factor)


@compiled
def transform(affine: Any, picture: Any, target: Any) -> None:
    height, width, channels = picture.shape
    a, b, c, d, e, f = affine
    for y in range(height):
        for x in range(width):
            column = (a * x + b * y + c) >> 16
            row = (d * x + e * y + f) >> 16
            if 0 <= column < width and 0 <= row < height:
                for channel in range(channels):
                    target[y, x, channel] = picture[row, column, channel]
            else:
                for channel in range(channels):
                    target[y, x, channel] = 0
