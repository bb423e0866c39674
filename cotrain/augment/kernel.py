"""Views on the CPU: one compiled loop over the images of a batch, equal to Pillow in every bit.

A picture is a (H, W, C) array of levels 0..255. Beside it goes `shown`, (H, W, 1): zero where the view has nothing
to show and mid-grey is painted at the end. Rows and columns to read are given as indices, -1 for zero padding.
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
inlined = numba.njit(inline="always", error_model="numpy")


def render(
    images: NDArray, rows: NDArray, draw: Draw, policy: Policy, cutout: NDArray, table: NDArray, threads: int
) -> NDArray:
    """The views of images[rows], written through `table` (C, 257): one entry for each level, the last for mid-grey."""
    out = np.empty((len(rows), *images.shape[1:]), table.dtype)
    style = (policy.pad == "reflect", policy.order == "ops_first", policy.fill == "grey", policy.cutout == "fixed")
    levels = np.stack([np.tile(t, (images.shape[3], 1)) for t in (np.arange(256, dtype=np.uint8), TRUNCATED)])

    def render_part(part: slice) -> None:
        decisions = tuple(np.ascontiguousarray(getattr(draw, field.name)[part]) for field in fields(Draw))
        _render(images, rows[part], decisions, style, levels, cutout, table, out[part])

    if threads == 1:
        render_part(slice(0, len(rows)))
        return out
    ends = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(render_part, map(slice, ends, ends[1:])))
    return out


@compiled
def _render(images: Any, rows: Any, draw: Any, style: Any, levels: Any, cutout: Any, table: Any, out: Any) -> None:
    flip, shift, truncate, ops, magnitudes, affines, boxes = draw
    reflect, crop_last, grey_fill, grey_box = style
    _, height, width, channels = images.shape
    pictures = np.empty((2, height, width, channels), np.uint8)
    masks = np.empty((3, height, width, 1), np.uint8)
    whole = np.arange(height), np.arange(width), np.array([0, height, 0, width])
    crop = np.arange(height), np.arange(width), np.array([0, height, 0, width])
    for i in range(len(rows)):
        source, target = images[rows[i]], out[i]
        find_crop(shift[i], flip[i], reflect, crop)
        if ops.shape[1] == 0 and boxes[i, 2] == 0 and not truncate[i]:
            gather(source, crop, table, target)
            continue
        gather(source, whole if crop_last else crop, levels[int(truncate[i])], pictures[0])
        picture, hidden = operate(ops[i], magnitudes[i], affines[i], grey_fill, pictures, masks, whole)
        cut_out(boxes[i], grey_box, cutout, picture, hidden)
        gather(picture, crop if crop_last else whole, table, target)
        if grey_fill or grey_box:
            gather(hidden, crop if crop_last else whole, levels[0], masks[2])
            paint_grey(masks[2], table, target)


@compiled
def operate(ops: Any, magnitudes: Any, affines: Any, grey_fill: bool, pictures: Any, masks: Any, whole: Any) -> Any:
    """Apply the operations to the first picture; the result is one of the two, with what of it is hidden."""
    picture, spare = pictures[0], pictures[1]
    hidden, spare_hidden = masks[0], masks[1]
    fill(hidden, 0)
    for k in range(len(ops)):
        if ops[k] in GEOMETRIC:
            transform(affines[k], picture, 0, spare)
            picture, spare = spare, picture
            if grey_fill:
                transform(affines[k], hidden, 1, spare_hidden)
                hidden, spare_hidden = spare_hidden, hidden
        else:
            change_levels(ops[k], magnitudes[k], picture, spare, whole)
            if ops[k] in OPAQUE:
                fill(hidden, 0)
    return picture, hidden


@compiled
def find_crop(shift: Any, flip: bool, reflect: bool, window: Any) -> None:
    """Set the window's rows and columns, mirrored at the borders, and which of them are not zero padding."""
    rows, columns, inside = window
    height, width = len(rows), len(columns)
    for y in range(height):
        row = abs(y + shift[0])
        rows[y] = min(row, 2 * (height - 1) - row)
    for x in range(width):
        column = abs(x + shift[1])
        column = min(column, 2 * (width - 1) - column)
        columns[x] = width - 1 - column if flip else column
    if not reflect:
        inside[0], inside[1] = max(0, -shift[0]), min(height, height - shift[0])
        inside[2], inside[3] = max(0, -shift[1]), min(width, width - shift[1])


@compiled
def gather(source: Any, window: Any, table: Any, target: Any) -> None:
    """Target shows the window of source, each channel's levels through that channel's table."""
    rows, columns, inside = window
    height, width, channels = target.shape
    if channels == 3:  # a constant, so that the compiler unrolls the loop over channels
        gather_pixels(source, rows, columns, table, target, 3)
    else:
        gather_pixels(source, rows, columns, table, target, channels)
    if inside[1] - inside[0] < height or inside[3] - inside[2] < width:
        for y in range(height):
            for x in range(width):
                if not (inside[0] <= y < inside[1] and inside[2] <= x < inside[3]):
                    for c in range(channels):
                        target[y, x, c] = table[c, 0]


@inlined
def gather_pixels(source: Any, rows: Any, columns: Any, table: Any, target: Any, channels: int) -> None:
    for y in range(len(rows)):
        row = np.uintp(rows[y])
        for x in range(len(columns)):
            column = np.uintp(columns[x])
            for c in range(channels):
                target[y, x, c] = table[c, source[row, column, c]]


@compiled
def paint_grey(hidden: Any, table: Any, target: Any) -> None:
    height, width, channels = target.shape
    for y in range(height):
        for x in range(width):
            if hidden[y, x, 0]:
                for c in range(channels):
                    target[y, x, c] = table[c, 256]


@compiled
def cut_out(box: Any, grey_box: bool, cutout: Any, picture: Any, hidden: Any) -> None:
    left, top, right, bottom = box
    for y in range(top, bottom):
        for x in range(left, right):
            hidden[y, x, 0] = grey_box
            for c in range(len(cutout)):
                picture[y, x, c] = cutout[c]


@compiled
def fill(picture: Any, level: int) -> None:
    flat = picture.reshape(-1)
    for i in range(flat.size):
        flat[i] = level


@compiled
def transform(affine: Any, picture: Any, outside: int, target: Any) -> None:
    a, _, _, d, _, _ = affine
    if a == 65536 and d == 0:
        slide_rows(affine, picture, outside, target)
    elif picture.shape[2] == 3:
        turn(affine, picture, outside, target, 3)
    else:
        turn(affine, picture, outside, target, picture.shape[2])


@compiled
def slide_rows(affine: Any, picture: Any, outside: int, target: Any) -> None:
    """The affine map when every row only moves as a whole: translation and ShearX."""
    height, width, channels = picture.shape
    _, b, c, _, e, f = affine
    source = picture.reshape((height, width * channels))
    shown = target.reshape((height, width * channels))
    fill(target, outside)
    for y in range(height):
        row, shift = (e * y + f) >> 16, (b * y + c) >> 16
        if 0 <= row < height:
            for i in range(max(0, -shift) * channels, min(width, width - shift) * channels):
                shown[np.uintp(y), np.uintp(i)] = source[np.uintp(row), np.uintp(i + shift * channels)]


@inlined
def turn(affine: Any, picture: Any, outside: int, target: Any, channels: int) -> None:
    height, width, _ = picture.shape
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
                    target[y, x, channel] = outside


@compiled
def change_levels(op: int, magnitude: float, picture: Any, spare: Any, whole: Any) -> None:
    if op == BRIGHTNESS:
        fill(spare, 0)
        blend(spare, picture, np.float32(magnitude))
    elif op == COLOR:
        fill_with_luma(picture, spare)
        blend(spare, picture, np.float32(magnitude))
    elif op == CONTRAST:
        fill(spare, mean_luma(picture))
        blend(spare, picture, np.float32(magnitude))
    elif op == SHARPNESS:
        smooth(picture, spare)
        blend(spare, picture, np.float32(magnitude))
    elif op == POSTERIZE:
        posterize(int(magnitude), picture)
    elif op == SOLARIZE:
        solarize(int(np.ceil(magnitude)), picture)
    elif op == AUTO_CONTRAST or op == EQUALIZE:
        levels = np.empty((picture.shape[2], 256), np.uint8)
        if op == AUTO_CONTRAST:
            find_autocontrast(picture, levels)
        else:
            find_equalize(picture, levels)
        gather(picture, whole, levels, picture)


@compiled
def blend(degenerate: Any, picture: Any, factor: float) -> None:
    """Pillow's blend, in float32 and truncated, of picture with its degenerate form."""
    base, level = degenerate.reshape(-1), picture.reshape(-1)
    for i in range(level.size):
        start = np.float32(base[i])
        mixed = start + factor * (np.float32(level[i]) - start)
        level[i] = np.uint8(np.int32(min(max(mixed, np.float32(0)), np.float32(255))))


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
        level = flat[i]
        flat[i] = level if level < threshold else 255 - level


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
def fill_with_luma(picture: Any, target: Any) -> None:
    if picture.shape[2] == 3:
        spread_luma(picture, target, 3)
    else:
        spread_luma(picture, target, picture.shape[2])


@inlined
def spread_luma(picture: Any, target: Any, channels: int) -> None:
    for y in range(picture.shape[0]):
        for x in range(picture.shape[1]):
            level = luma(picture, y, x)
            for c in range(channels):
                target[y, x, c] = level


@compiled
def find_autocontrast(picture: Any, levels: Any) -> None:
    """Stretch each channel's range to 0..255."""
    height, width, channels = picture.shape
    lines = picture.reshape((height, width * channels))
    low, high = np.full(width * channels, 255, np.uint8), np.zeros(width * channels, np.uint8)
    for y in range(height):
        for i in range(width * channels):
            low[i] = min(low[i], lines[y, i])
            high[i] = max(high[i], lines[y, i])
    for c in range(channels):
        for i in range(c, width * channels, channels):
            low[c] = min(low[c], low[i])
            high[c] = max(high[c], high[i])
        lowest, highest = np.float64(low[c]), np.float64(high[c])
        scale = 255.0 / (highest - lowest) if highest > lowest else 1.0
        offset = -lowest * scale if highest > lowest else 0.0
        for i in range(256):
            levels[c, i] = np.int32(min(max(i * scale + offset, 0.0), 255.0))


@compiled
def find_equalize(picture: Any, levels: Any) -> None:
    """Spread each channel's levels so that all of 0..255 are used about equally often."""
    channels = picture.shape[2]
    counts = np.zeros((channels, 256), np.int32)
    if channels == 3:
        _count(picture, counts, 3)
    else:
        _count(picture, counts, channels)
    for c in range(channels):
        highest = 255
        while counts[c, highest] == 0:
            highest -= 1
        step = (picture.shape[0] * picture.shape[1] - counts[c, highest]) // 255
        below = step // 2
        for i in range(256):
            counts[c, i], below = below, below + counts[c, i]
        for i in range(256):
            levels[c, i] = np.int32(min(counts[c, i] / step, 255.0)) if step > 0 else i


@inlined
def _count(picture: Any, counts: Any, channels: int) -> None:
    for y in range(picture.shape[0]):
        for x in range(picture.shape[1]):
            for c in range(channels):
                counts[c, picture[y, x, c]] += 1


@compiled
def smooth(picture: Any, target: Any) -> None:
    """3x3 smoothing, centre 5 and the others 1 of 13; the border stays as it is."""
    height, width, channels = picture.shape
    line = width * channels
    source, result = picture.reshape((height, line)), target.reshape((height, line))
    for y in range(height):
        for i in range(line):
            result[y, i] = source[y, i]
    if height < 3 or width < 3:
        return
    three = np.empty(line, np.uint16)
    for y in range(1, height - 1):
        for i in range(line):
            three[i] = source[y - 1, i] + source[y, i] + source[y + 1, i]
        for i in range(channels, line - channels):
            at = np.uintp(i)
            nine = three[np.uintp(i - channels)] + three[at] + three[np.uintp(i + channels)]
            result[np.uintp(y), at] = (nine + 4 * source[np.uintp(y), at] + 6) // 13
