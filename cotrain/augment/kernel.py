"""Views on the CPU, bit-exact with Pillow: one compiled loop over the images of a batch.

A picture is an (H, W, C) array of levels. Its mask `hidden`, (H, W, 1), is one for pixels that become mid-grey at the
end. Levels are copied to byte outputs, and mapped to float outputs by a table or by arithmetic with the same result.
All compiled code is in this file, because numba's cache does not notice changes in other files.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from cotrain.augment import policy

# No fastmath: fused or reordered float operations would round differently from Pillow.
compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
# Inlining unrolls loops over channels when they are called with the constant 3: about three times as fast.
inlined = numba.njit(inline="always", error_model="numpy")
written_in_llvm: Any = intrinsic
MIRRORED = 16  # pixels reversed at a time
# 1 / 255 as the sum of two floats.
UNIT = np.float32(1 / 255)
UNIT_REST = np.float32(1 / 255 - float(UNIT))
# Arrays are not unpacked, and views are made rarely: numba's reference counting takes longer than processing a row.
# Hot loops use np.uintp indices: numba checks every signed index, because it could be negative.


@compiled
def render(
    images: NDArray,
    rows: NDArray,
    draw: tuple[NDArray, ...],
    style: tuple[bool, bool, bool, bool],
    cutout: NDArray,
    truncated: NDArray,
    table: NDArray,
    formula: NDArray,
    out: NDArray,
) -> None:
    """Write view i of images[rows[i]] to out[i].

    `draw` has the fields of a Draw, `style` the policy's settings that are not in it, `cutout` (C,) the level of boxes.
    `truncated` (C, 256) maps the levels of truncated views; `table` (C, 257) has the output for each level, and last
    for mid-grey. With `formula`, `calculate` gives the same result as the table; it has no columns if there is none.
    """
    flip, shift, truncate, ops, magnitudes, affines, boxes = draw
    zero_padding, crop_last, grey_fill, grey_box = style
    _, height, width, channels = images.shape
    grey = grey_fill or grey_box
    pictures = np.empty((3, height, width, channels), np.uint8)
    masks = np.empty((3, height, width, 1), np.uint8)
    for i in range(len(rows)):
        source, down, right = images[rows[i]], shift[i, 0], shift[i, 1]
        if not (flip[i] or zero_padding or truncate[i] or ops.shape[1] > 0 or boxes[i, 2] > 0):
            crop(source, down, right, False, False, table, formula, out[i])
            continue
        shown = 0
        if crop_last:
            write(source, 0, table, formula, pictures[0], 0, source.size)
        else:
            crop(source, down, right, flip[i], zero_padding, table, formula, pictures[0])
        if truncate[i]:
            look_up(pictures[0].ravel(), truncated, pictures[0].ravel())
        if grey:
            fill(masks[0], 0)
        if ops.shape[1] > 0:
            shown = operate(ops[i], magnitudes[i], affines[i], grey, grey_fill, pictures, masks)
        if boxes[i, 2] > 0:
            cut_out(boxes[i], grey_box, cutout, pictures[shown], masks[shown])
        if crop_last:
            crop(pictures[shown], down, right, flip[i], zero_padding, table, formula, pictures[2])
            if grey:
                crop(masks[shown], down, right, flip[i], zero_padding, table, formula, masks[2])
            shown = 2
        write(pictures[shown], 0, table, formula, out[i], 0, source.size)
        if grey:
            paint_grey(masks[shown], table, out[i])


@compiled
def operate(
    ops: NDArray, magnitudes: NDArray, affines: NDArray, grey: bool, grey_fill: bool, pictures: NDArray, masks: NDArray
) -> int:
    """Apply the operations to the first picture, and to its mask if `grey`. Returns the index of the result."""
    shown = 0
    for k in range(len(ops)):
        if ops[k] in policy.GEOMETRIC:
            transform(affines[k], pictures[shown], 0, pictures[1 - shown])
            if grey:
                transform(affines[k], masks[shown], int(grey_fill), masks[1 - shown])
            shown = 1 - shown
        elif ops[k] != policy.IDENTITY:
            change_levels(ops[k], magnitudes[k], pictures[shown], pictures[1 - shown])
            if grey and ops[k] in policy.OPAQUE:
                fill(masks[shown], 0)
    return shown


@compiled
def crop(
    source: NDArray,
    down: int,
    right: int,
    flip: bool,
    zero_padding: bool,
    table: NDArray,
    formula: NDArray,
    target: NDArray,
) -> None:
    """Shift by (down, right) and optionally flip (bytes only). Outside the picture: mirrored at the border, or zero."""
    height, width, channels = source.shape
    if not flip:
        # One contiguous copy. Pixels that wrap around the end of a row are in the padding, which is written below.
        start = (down * width + right) * channels
        write(source, max(0, start), table, formula, target, max(0, -start), source.size - abs(start))
    elif channels == 3 and width - abs(right) >= MIRRORED:
        mirror_inside(source, down, right, target)
    else:
        fetch(source, down, right, flip, (0, height, 0, width), table, target)
    outer_rows = (0, -down) if down < 0 else (height - down, height)
    outer_columns = (0, -right) if right < 0 else (width - right, width)
    if zero_padding:
        target[outer_rows[0] : outer_rows[1]] = 0
        target[:, outer_columns[0] : outer_columns[1]] = 0
    else:
        fetch(source, down, right, flip, (*outer_rows, 0, width), table, target)
        fetch(source, down, right, flip, (0, height, *outer_columns), table, target)


@compiled
def fetch(
    source: NDArray, down: int, right: int, flip: bool, part: tuple[int, int, int, int], table: NDArray, target: NDArray
) -> None:
    """Write a part of a crop, pixel by pixel."""
    if source.shape[2] == 3:
        fetch_pixels(source, down, right, flip, part, table, target, 3)
    else:
        fetch_pixels(source, down, right, flip, part, table, target, source.shape[2])


@inlined
def fetch_pixels(
    source: NDArray,
    down: int,
    right: int,
    flip: bool,
    part: tuple[int, int, int, int],
    table: NDArray,
    target: NDArray,
    channels: int,
) -> None:
    height, width, _ = source.shape
    for y in range(part[0], part[1]):
        row = mirrored(y + down, height)
        for x in range(part[2], part[3]):
            column = mirrored(x + right, width)
            column = width - 1 - column if flip else column
            for c in range(channels):
                level = source[np.uintp(row), np.uintp(column), c]
                target[np.uintp(y), np.uintp(x), c] = level if target.itemsize == 1 else table[c, level]


@inlined
def mirrored(place: int, size: int) -> int:
    return min(abs(place), 2 * (size - 1) - abs(place))


@compiled
def mirror_inside(source: NDArray, down: int, right: int, target: NDArray) -> None:
    """The part of a flipped crop inside the picture, for three channels. May write the last pixels of a row twice."""
    height, width, _ = source.shape
    first, last = max(0, -right), min(width, width - right)
    levels, result = source.ravel(), target.ravel()
    for y in range(max(0, -down), min(height, height - down)):
        for begin in range(first, last, MIRRORED):
            x = min(begin, last - MIRRORED)
            column = width - right - x - MIRRORED
            mirror_pixels(levels, 3 * ((y + down) * width + column), result, 3 * (y * width + x))


@written_in_llvm
def mirror_pixels(_: Any, source: Any, start: Any, target: Any, place: Any) -> Any:
    """Reverse MIRRORED pixels of three bytes: one shuffle instead of three loads and stores per pixel."""
    vector = ir.VectorType(ir.IntType(8), 3 * MIRRORED)
    order = [3 * pixel + c for pixel in reversed(range(MIRRORED)) for c in range(3)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pointer(array: int) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.bitcast(builder.gep(data, [arguments[array + 1]]), vector.as_pointer())

        pixels = builder.load(pointer(0), align=1)
        indices = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
        builder.store(builder.shuffle_vector(pixels, pixels, indices), pointer(2), align=1)
        return context.get_dummy_value()

    return types.void(source, start, target, place), generate


@compiled
def write(
    picture: NDArray, start: int, table: NDArray, formula: NDArray, target: NDArray, place: int, length: int
) -> None:
    """Write `length` levels from `start` in the picture to `place` in the target, both at a first channel."""
    source, result = picture.ravel()[start : start + length], target.ravel()[place : place + length]
    if target.itemsize == 1:
        for i in range(length):
            result[i] = source[i]
        return
    done = calculate(source, formula, result) if formula.size > 0 else 0
    if done < length:
        look_up(source[done:], table, result[done:])


@written_in_llvm
def fused(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@compiled
def calculate(source: NDArray, formula: NDArray, target: NDArray) -> int:
    """(level / 255 - mean) / std in float32. Each division is a product with a reciprocal stored as two floats.

    The rows of `formula` are the mean, the reciprocal of std and its rounding error; its columns cycle through the
    channels. Levels are computed in blocks of as many as there are columns; returns how many were computed.
    """
    mean, scale, rest = formula[0], formula[1], formula[2]
    block = formula.shape[1]
    for start in range(0, source.size - block + 1, block):
        for i in range(block):
            level = np.float32(source[np.uintp(start + i)])
            centred = fused(level, UNIT, level * UNIT_REST) - mean[np.uintp(i)]
            target[np.uintp(start + i)] = fused(centred, scale[np.uintp(i)], centred * rest[np.uintp(i)])
    return source.size - source.size % block


@compiled
def look_up(source: NDArray, table: NDArray, target: NDArray) -> None:
    if len(table) == 3:
        look_up_pixels(source, table, target, 3)
    else:
        look_up_pixels(source, table, target, len(table))


@inlined
def look_up_pixels(source: NDArray, table: NDArray, target: NDArray, channels: int) -> None:
    for i in range(0, source.size, channels):
        for c in range(channels):
            target[np.uintp(i + c)] = table[c, source[np.uintp(i + c)]]


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
    for y in range(box[1], box[3]):
        for x in range(box[0], box[2]):
            hidden[y, x, 0] = grey_box
            for c in range(len(cutout)):
                picture[y, x, c] = cutout[c]


@compiled
def fill(picture: NDArray, level: int) -> None:
    flat = picture.ravel()
    for i in range(flat.size):
        flat[i] = level


@compiled
def transform(affine: NDArray, picture: NDArray, outside: int, target: NDArray) -> None:
    if affine[0] == 65536 and affine[3] == 0:
        slide_rows(affine, picture, outside, target)
    elif picture.shape[2] == 3:
        map_pixels(affine, picture, outside, target, 3)
    else:
        map_pixels(affine, picture, outside, target, picture.shape[2])


@inlined
def map_pixels(affine: NDArray, picture: NDArray, outside: int, target: NDArray, channels: int) -> None:
    height, width, _ = picture.shape
    a, b, c, d, e, f = affine[0], affine[1], affine[2], affine[3], affine[4], affine[5]
    fill(target, outside)
    for y in range(height):
        column, row = b * y + c, e * y + f
        first, last = 0, width
        while first < last and not within(column + a * first, row + d * first, height, width):
            first += 1
        while first < last and not within(column + a * (last - 1), row + d * (last - 1), height, width):
            last -= 1
        for x in range(first, last):
            from_row, from_column = np.uintp((row + d * x) >> 16), np.uintp((column + a * x) >> 16)
            for channel in range(channels):
                target[np.uintp(y), np.uintp(x), channel] = picture[from_row, from_column, channel]


@inlined
def within(column: int, row: int, height: int, width: int) -> bool:
    return 0 <= column < width << 16 and 0 <= row < height << 16


@compiled
def slide_rows(affine: NDArray, picture: NDArray, outside: int, target: NDArray) -> None:
    """The affine map if every row only moves as a whole: translations and ShearX."""
    height, width, channels = picture.shape
    b, c, e, f = affine[1], affine[2], affine[4], affine[5]
    source, result = picture.reshape((height, width * channels)), target.reshape((height, width * channels))
    fill(target, outside)
    for y in range(height):
        row, shift = (e * y + f) >> 16, (b * y + c) >> 16
        if 0 <= row < height:
            for i in range(max(0, -shift) * channels, min(width, width - shift) * channels):
                result[np.uintp(y), np.uintp(i)] = source[np.uintp(row), np.uintp(i + shift * channels)]


@inlined
def change_levels(op: int, magnitude: float, picture: NDArray, spare: NDArray) -> None:
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
        look_up(picture.ravel(), table, picture.ravel())
    else:
        find_degenerate(op, picture, spare)
        blend(spare, picture, np.float32(magnitude))


@compiled
def posterize(bits: int, picture: NDArray) -> None:
    flat = picture.ravel()
    mask = np.uint8(256 - (1 << (8 - bits)))
    for i in range(flat.size):
        flat[i] &= mask


@compiled
def solarize(threshold: int, picture: NDArray) -> None:
    flat = picture.ravel()
    for i in range(flat.size):
        flat[i] = flat[i] if flat[i] < threshold else 255 - flat[i]


@compiled
def blend(degenerate: NDArray, picture: NDArray, factor: np.float32) -> None:
    """Pillow's blend: in float32, then truncated."""
    base, flat = degenerate.ravel(), picture.ravel()
    for i in range(flat.size):
        start = np.float32(base[i])
        mixed = start + factor * (np.float32(flat[i]) - start)
        flat[i] = np.int32(min(max(mixed, np.float32(0)), np.float32(255)))


@inlined
def find_degenerate(op: int, picture: NDArray, target: NDArray) -> None:
    """What the enhancers blend with: black, the greyscale picture, its mean grey, or a smoothed picture."""
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
    """3x3 smoothing with weights 5/13 in the centre and 1/13 around it; the border does not change."""
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
    """A table that stretches each channel's range to 0..255."""
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
    """A table that spreads each channel's levels about evenly over 0..255."""
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
