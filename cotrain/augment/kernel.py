"""Views on the CPU: one compiled loop over the images of a batch, equal to Pillow in every bit.

A picture is a (H, W, C) array of levels; beside it goes `hidden`, (H, W, 1), one where mid-grey is painted at the end.
A window is the rows and the columns of a picture to show, and the part of them that is not zero padding.
All compiled code is in this one file, because numba's cache notices no change in another.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from cotrain.augment import policy

Window = tuple[NDArray, NDArray, NDArray]

# Without fastmath: a fused or reordered float operation would leave Pillow's rounding.
compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
# So that a loop over channels, called with the constant 3, is unrolled: about three times as fast.
inlined = numba.njit(inline="always", error_model="numpy")
# Hot loops index by np.uintp: numba tests a signed index each time, as it could count from the end.


@compiled
def render(
    images: NDArray,
    rows: NDArray,
    draw: tuple[NDArray, ...],
    style: tuple[bool, bool, bool, bool],
    cutout: NDArray,
    truncated: NDArray,
    table: NDArray,
    out: NDArray,
) -> None:
    """Write view i of images[rows[i]] to out[i].

    `draw` is the fields of a Draw, `style` those of the policy that are not in it, `cutout` (C,) the levels of boxes.
    `truncated` (C, 256) maps the levels of truncated views, `table` (C, 257) all levels and, last, mid-grey on writing.
    """
    flip, shift, truncate, ops, magnitudes, affines, boxes = draw
    zero_padding, crop_last, grey_fill, grey_box = style
    _, height, width, channels = images.shape
    pictures = np.empty((3, height, width, channels), np.uint8)
    masks = np.empty((3, height, width, 1), np.uint8)
    whole = np.arange(height), np.arange(width), np.array([0, height, 0, width])
    crop = np.arange(height), np.arange(width), np.array([0, height, 0, width])
    for i in range(len(rows)):
        source = images[rows[i]]
        find_crop(shift[i], flip[i], zero_padding, crop)
        if not (zero_padding or truncate[i] or ops.shape[1] > 0 or boxes[i, 2] > 0):
            look_up(source, crop, table, out[i])
            continue
        copy(source, whole if crop_last else crop, pictures[0])
        if truncate[i]:
            look_up(pictures[0], whole, truncated, pictures[0])
        picture, hidden = operate(ops[i], magnitudes[i], affines[i], grey_fill, pictures, masks, whole)
        cut_out(boxes[i], grey_box, cutout, picture, hidden)
        if crop_last:
            copy(picture, crop, pictures[2])
            copy(hidden, crop, masks[2])
            picture, hidden = pictures[2], masks[2]
        look_up(picture, whole, table, out[i])
        if grey_fill or grey_box:
            paint_grey(hidden, table, out[i])


@compiled
def operate(
    ops: NDArray,
    magnitudes: NDArray,
    affines: NDArray,
    grey_fill: bool,
    pictures: NDArray,
    masks: NDArray,
    whole: Window,
) -> tuple[NDArray, NDArray]:
    """Apply the operations to the first picture; the result is that or the second, and what of it is hidden."""
    picture, spare = pictures[0], pictures[1]
    hidden, spare_hidden = masks[0], masks[1]
    fill(hidden, 0)
    for k in range(len(ops)):
        if ops[k] in policy.GEOMETRIC:
            transform(affines[k], picture, 0, spare)
            picture, spare = spare, picture
            if grey_fill:
                transform(affines[k], hidden, 1, spare_hidden)
                hidden, spare_hidden = spare_hidden, hidden
        elif ops[k] != policy.IDENTITY:
            change_levels(ops[k], magnitudes[k], picture, spare, whole)
            if ops[k] in policy.OPAQUE:
                fill(hidden, 0)
    return picture, hidden


@compiled
def find_crop(shift: NDArray, flip: bool, zero_padding: bool, window: Window) -> None:
    """Set the window: mirrored at the borders or, as far as it is not inside, zero."""
    rows, columns, inside = window
    height, width = len(rows), len(columns)
    for y in range(height):
        row = abs(y + shift[0])
        rows[y] = min(row, 2 * (height - 1) - row)
    for x in range(width):
        column = abs(x + shift[1])
        column = min(column, 2 * (width - 1) - column)
        columns[x] = width - 1 - column if flip else column
    if zero_padding:
        inside[0], inside[1] = max(0, -shift[0]), min(height, height - shift[0])
        inside[2], inside[3] = max(0, -shift[1]), min(width, width - shift[1])


@compiled
def copy(source: NDArray, window: Window, target: NDArray) -> None:
    rows, columns, inside = window
    height, width, channels = target.shape
    if channels == 3:
        copy_pixels(source, rows, columns, target, 3)
    else:
        copy_pixels(source, rows, columns, target, channels)
    if inside[1] - inside[0] < height or inside[3] - inside[2] < width:
        for y in range(height):
            for x in range(width):
                if not (inside[0] <= y < inside[1] and inside[2] <= x < inside[3]):
                    for c in range(channels):
                        target[y, x, c] = 0


@inlined
def copy_pixels(source: NDArray, rows: NDArray, columns: NDArray, target: NDArray, channels: int) -> None:
    for y in range(len(rows)):
        row = np.uintp(rows[y])
        for x in range(len(columns)):
            column = np.uintp(columns[x])
            for c in range(channels):
                target[y, x, c] = source[row, column, c]


@compiled
def look_up(source: NDArray, window: Window, table: NDArray, target: NDArray) -> None:
    """Copy a window without padding, each channel's levels through that channel's table."""
    rows, columns, _ = window
    if source.shape[2] == 3:
        look_up_pixels(source, rows, columns, table, target, 3)
    else:
        look_up_pixels(source, rows, columns, table, target, source.shape[2])


@inlined
def look_up_pixels(
    source: NDArray, rows: NDArray, columns: NDArray, table: NDArray, target: NDArray, channels: int
) -> None:
    for y in range(len(rows)):
        row = np.uintp(rows[y])
        for x in range(len(columns)):
            column = np.uintp(columns[x])
            for c in range(channels):
                target[y, x, c] = table[c, source[row, column, c]]


@compiled
def paint_grey(hidden: NDArray, table: NDArray, target: NDArray) -> None:
    height, width, channels = target.shape
    for y in range(height):
        for x in range(width):
            if hidden[y, x, 0]:
                for c in range(channels):
                    target[y, x, c] = table[c, 256]


@compiled
def cut_out(box: NDArray, grey_box: bool, cutout: NDArray, picture: NDArray, hidden: NDArray) -> None:
    left, top, right, bottom = box
    for y in range(top, bottom):
        for x in range(left, right):
            hidden[y, x, 0] = grey_box
            for c in range(len(cutout)):
                picture[y, x, c] = cutout[c]


@compiled
def fill(picture: NDArray, level: int) -> None:
    flat = picture.reshape(-1)
    for i in range(flat.size):
        flat[i] = level


@compiled
def transform(affine: NDArray, picture: NDArray, outside: int, target: NDArray) -> None:
    a, _, _, d, _, _ = affine
    if a == 65536 and d == 0:
        slide_rows(affine, picture, outside, target)
    elif picture.shape[2] == 3:
        map_pixels(affine, picture, outside, target, 3)
    else:
        map_pixels(affine, picture, outside, target, picture.shape[2])


@inlined
def map_pixels(affine: NDArray, picture: NDArray, outside: int, target: NDArray, channels: int) -> None:
    height, width, _ = picture.shape
    a, b, c, d, e, f = affine
    for y in range(height):
        for x in range(width):
            column, row = (a * x + b * y + c) >> 16, (d * x + e * y + f) >> 16
            if 0 <= column < width and 0 <= row < height:
                for channel in range(channels):
                    target[y, x, channel] = picture[row, column, channel]
            else:
                for channel in range(channels):
                    target[y, x, channel] = outside


@compiled
def slide_rows(affine: NDArray, picture: NDArray, outside: int, target: NDArray) -> None:
    """The affine map when every row only moves as a whole: translation and ShearX."""
    height, width, channels = picture.shape
    _, b, c, _, e, f = affine
    source, result = picture.reshape((height, width * channels)), target.reshape((height, width * channels))
    fill(target, outside)
    for y in range(height):
        row, shift = (e * y + f) >> 16, (b * y + c) >> 16
        if 0 <= row < height:
            for i in range(max(0, -shift) * channels, min(width, width - shift) * channels):
                result[np.uintp(y), np.uintp(i)] = source[np.uintp(row), np.uintp(i + shift * channels)]


@inlined
def change_levels(op: int, magnitude: float, picture: NDArray, spare: NDArray, whole: Window) -> None:
    if op == policy.POSTERIZE:
        posterize(int(magnitude), picture)
    elif op == policy.SOLARIZE:
        solarize(int(np.ceil(magnitude)), picture)
    elif op == policy.AUTO_CONTRAST or op == policy.EQUALIZE:
        table = np.empty((picture.shape[2], 256), np.uint8)
        if op == policy.AUTO_CONTRAST:
            find_autocontrast(picture, table)
        else:
            find_equalize(picture, table)
        look_up(picture, whole, table, picture)
    else:
        find_degenerate(op, picture, spare)
        blend(spare, picture, np.float32(magnitude))


@compiled
def posterize(bits: int, picture: NDArray) -> None:
    flat = picture.reshape(-1)
    mask = np.uint8(256 - (1 << (8 - bits)))
    for i in range(flat.size):
        flat[i] &= mask


@compiled
def solarize(threshold: int, picture: NDArray) -> None:
    flat = picture.reshape(-1)
    for i in range(flat.size):
        flat[i] = flat[i] if flat[i] < threshold else 255 - flat[i]


@compiled
def blend(degenerate: NDArray, picture: NDArray, factor: np.float32) -> None:
    """Pillow's blend, in float32 and truncated."""
    base, flat = degenerate.reshape(-1), picture.reshape(-1)
    for i in range(flat.size):
        start = np.float32(base[i])
        mixed = start + factor * (np.float32(flat[i]) - start)
        flat[i] = np.int32(min(max(mixed, np.float32(0)), np.float32(255)))


@inlined
def find_degenerate(op: int, picture: NDArray, target: NDArray) -> None:
    """What the enhancers blend with: black, greys, the mean grey, a smoother picture."""
    if op == policy.BRIGHTNESS:
        fill(target, 0)
    elif op == policy.CONTRAST:
        fill(target, mean_luma(picture))
    elif op == policy.SHARPNESS:
        smooth(picture, target)
    elif op == policy.COLOR and picture.shape[2] == 3:
        spread_luma(picture, target, 3)
    else:
        spread_luma(picture, target, picture.shape[2])


@compiled
def luma(picture: NDArray, y: int, x: int) -> int:
    channels = picture.shape[2]
    if channels == 3:
        red, green, blue = picture[y, x, 0], picture[y, x, 1], picture[y, x, 2]
        return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    total = 0
    for c in range(channels):
        total += picture[y, x, c]
    return (2 * total + channels) // (2 * channels)


@compiled
def mean_luma(picture: NDArray) -> int:
    height, width, _ = picture.shape
    total = 0
    for y in range(height):
        for x in range(width):
            total += luma(picture, y, x)
    return (2 * total + height * width) // (2 * height * width)


@inlined
def spread_luma(picture: NDArray, target: NDArray, channels: int) -> None:
    height, width, _ = picture.shape
    for y in range(height):
        for x in range(width):
            level = luma(picture, y, x)
            for c in range(channels):
                target[y, x, c] = level


@compiled
def smooth(picture: NDArray, target: NDArray) -> None:
    """3x3 smoothing, centre 5 and the others 1 of 13; the border stays as it is."""
    height, width, channels = picture.shape
    line = width * channels
    source, result = picture.reshape((height, line)), target.reshape((height, line))
    for y in range(height):
        for i in range(line):
            result[y, i] = source[y, i]
    three = np.empty(line, np.uint16)
    for y in range(1, height - 1):
        for i in range(line):
            three[i] = source[y - 1, i] + source[y, i] + source[y + 1, i]
        for i in range(channels, line - channels):
            nine = three[np.uintp(i - channels)] + three[np.uintp(i)] + three[np.uintp(i + channels)]
            result[np.uintp(y), np.uintp(i)] = (nine + 4 * source[np.uintp(y), np.uintp(i)] + 6) // 13


@compiled
def find_autocontrast(picture: NDArray, table: NDArray) -> None:
    """Each channel's range stretched to 0..255."""
    height, width, channels = picture.shape
    line = width * channels
    source = picture.reshape((height, line))
    low, high = np.full(line, 255, np.uint8), np.zeros(line, np.uint8)
    for y in range(height):
        for i in range(line):
            low[i] = min(low[i], source[y, i])
            high[i] = max(high[i], source[y, i])
    for c in range(channels):
        for i in range(c, line, channels):
            low[c] = min(low[c], low[i])
            high[c] = max(high[c], high[i])
        span = np.float64(high[c]) - np.float64(low[c])
        scale = 255.0 / span if span > 0 else 1.0
        offset = -np.float64(low[c]) * scale if span > 0 else 0.0
        for level in range(256):
            table[c, level] = np.int32(min(max(level * scale + offset, 0.0), 255.0))


@compiled
def find_equalize(picture: NDArray, table: NDArray) -> None:
    """Each channel's levels spread so that all of 0..255 are about equally frequent."""
    height, width, channels = picture.shape
    counts = np.zeros((channels, 256), np.int64)
    if channels == 3:
        count_levels(picture, counts, 3)
    else:
        count_levels(picture, counts, channels)
    for c in range(channels):
        highest = 255
        while counts[c, highest] == 0:
            highest -= 1
        step = (height * width - counts[c, highest]) // 255
        below = step // 2
        for level in range(256):
            table[c, level] = min(255, int(below / step)) if step > 0 else level
            below += counts[c, level]


@inlined
def count_levels(picture: NDArray, counts: NDArray, channels: int) -> None:
    for y in range(picture.shape[0]):
        for x in range(picture.shape[1]):
            for c in range(channels):
                counts[c, picture[y, x, c]] += 1
