"""Views on any device, bit-exact with `kernel.py`: tensor operations on all views that share an operation.

The `Draw` is on the CPU, so the views can be grouped by operation without waiting for the device.
Pictures are (n, H, W, C) uint8; `hidden`, (n, H, W, 1), is true for pixels that become mid-grey at the end.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


def render(images: Tensor, rows: Tensor, draw: Draw, policy: Policy, cutout: NDArray, table: NDArray) -> Tensor:
    """The views of images[rows], mapped through `table` (C, 257): one output per level, and the last for mid-grey."""
    device = images.device
    picture = images[rows.to(device)]
    hidden = torch.zeros_like(picture[..., :1], dtype=torch.bool)
    window = _crop_source(picture, draw, policy)
    if policy.order == "weak_first":
        picture = _sample(picture, *window)
    if draw.truncate.any():
        picture = torch.where(_per_view(draw.truncate, device), _to(TRUNCATED, device)[picture.int()], picture)
    for ops, magnitudes, affines in zip(draw.ops.T, draw.magnitudes.T, draw.affines.swapaxes(0, 1), strict=True):
        _operate(picture, hidden, ops, magnitudes, affines, policy)
    box = _inside_boxes(draw.boxes, picture)
    if policy.cutout == "fixed":
        hidden = hidden | box
    else:
        picture, hidden = torch.where(box, _to(cutout, device), picture), hidden & ~box
    if policy.order == "ops_first":
        picture, hidden = _sample(picture, *window), _sample(hidden, *window)
    written = _to(table, device)
    return torch.where(hidden, written[:, 256], written[torch.arange(len(cutout), device=device), picture.int()])


def _operate(
    picture: Tensor, hidden: Tensor, ops: NDArray, magnitudes: NDArray, affines: NDArray, policy: Policy
) -> None:
    """Apply each view's operation in place."""
    for op in np.unique(ops):
        if op in LEVEL_OPERATIONS:
            views = _views(ops == op, picture)
            picture[views] = LEVEL_OPERATIONS[op](picture[views], magnitudes[ops == op])
    moved = np.isin(ops, GEOMETRIC)
    if moved.any():
        views = _views(moved, picture)
        row, column = _affine_source(affines[moved], picture)
        picture[views] = _sample(picture[views], row, column)
        if policy.fill == "grey":
            hidden[views] = ~_sample(~hidden[views], row, column)
    hidden &= ~_per_view(np.isin(ops, OPAQUE), picture.device)


def _views(chosen: NDArray, picture: Tensor) -> Tensor:
    return _to(np.flatnonzero(chosen), picture.device)


def _to(values: NDArray, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)


def _per_view(values: NDArray, device: torch.device) -> Tensor:
    return _to(values, device)[:, None, None, None]


def _sample(picture: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Each view's picture[row, column], zero outside the picture."""
    height, width = picture.shape[1:3]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    view = torch.arange(len(picture), device=picture.device)[:, None, None]
    return picture[view, row.clamp(0, height - 1), column.clamp(0, width - 1)] * inside[..., None]


def _affine_source(affines: NDArray, picture: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column (n, H, W) that each output pixel shows."""
    height, width = picture.shape[1:3]
    y = torch.arange(height, device=picture.device)[:, None]
    x = torch.arange(width, device=picture.device)
    a, b, c, d, e, f = _to(affines, picture.device)[..., None, None].unbind(1)
    return (d * x + e * y + f) >> 16, (a * x + b * y + c) >> 16


def _crop_source(picture: Tensor, draw: Draw, policy: Policy) -> tuple[Tensor, Tensor]:
    """Rows (n, H, 1) and columns (n, 1, W) that each view's crop shows; zero padding has indices outside it."""
    height, width = picture.shape[1:3]
    rows = np.arange(height) + draw.shift[:, :1]
    columns = np.arange(width) + draw.shift[:, 1:]
    if policy.pad == "reflect":
        rows, columns = np.abs(rows), np.abs(columns)
        rows, columns = np.minimum(rows, 2 * (height - 1) - rows), np.minimum(columns, 2 * (width - 1) - columns)
    columns = np.where(draw.flip[:, None], width - 1 - columns, columns)
    return _to(rows, picture.device)[:, :, None], _to(columns, picture.device)[:, None, :]


def _inside_boxes(boxes: NDArray, picture: Tensor) -> Tensor:
    height, width = picture.shape[1:3]
    y = torch.arange(height, device=picture.device)[:, None, None]
    x = torch.arange(width, device=picture.device)[:, None]
    left, top, right, bottom = _to(boxes, picture.device)[..., None, None, None].unbind(1)
    return (x >= left) & (x < right) & (y >= top) & (y < bottom)


def _blend(degenerate: Tensor, picture: Tensor, magnitudes: NDArray) -> Tensor:
    """Pillow's blend: in float32, then truncated."""
    base = degenerate.float()
    factor = _per_view(magnitudes.astype(np.float32), picture.device)
    return (base + factor * (picture.float() - base)).clamp(0, 255).to(torch.uint8)


def _luma(picture: Tensor) -> Tensor:
    channels = picture.shape[-1]
    if channels == 3:
        red, green, blue = picture.int().unbind(-1)
        return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16)[..., None]
    return (2 * picture.sum(-1, keepdim=True, dtype=torch.int32) + channels) // (2 * channels)


def _brightness(picture: Tensor, magnitudes: NDArray) -> Tensor:
    return _blend(torch.zeros_like(picture), picture, magnitudes)


def _color(picture: Tensor, magnitudes: NDArray) -> Tensor:
    return _blend(_luma(picture), picture, magnitudes)


def _contrast(picture: Tensor, magnitudes: NDArray) -> Tensor:
    pixels = picture.shape[1] * picture.shape[2]
    total = _luma(picture).sum((1, 2), keepdim=True, dtype=torch.int64)
    return _blend((2 * total + pixels) // (2 * pixels), picture, magnitudes)


def _sharpness(picture: Tensor, magnitudes: NDArray) -> Tensor:
    """Blend with a 3x3 smoothing (weights 5/13 in the centre, 1/13 around it); the border is not smoothed."""
    smooth = picture.int()
    three = smooth[:, :-2] + smooth[:, 1:-1] + smooth[:, 2:]
    nine = three[:, :, :-2] + three[:, :, 1:-1] + three[:, :, 2:]
    smooth[:, 1:-1, 1:-1] = (nine + 4 * smooth[:, 1:-1, 1:-1] + 6) // 13
    return _blend(smooth, picture, magnitudes)


def _posterize(picture: Tensor, magnitudes: NDArray) -> Tensor:
    bits = magnitudes.astype(np.int64)
    return picture & _per_view((256 - (1 << (8 - bits))).astype(np.uint8), picture.device)


def _solarize(picture: Tensor, magnitudes: NDArray) -> Tensor:
    threshold = _per_view(np.ceil(magnitudes).astype(np.int16), picture.device)
    return torch.where(picture < threshold, picture, 255 - picture)


def _autocontrast(picture: Tensor, _: NDArray) -> Tensor:
    low, high = picture.amin((1, 2))[..., None].double(), picture.amax((1, 2))[..., None].double()
    scale = torch.full_like(low, 255) / (high - low)  # dividing a scalar by a tensor would round twice
    level = torch.arange(256, device=picture.device)
    stretched = (level * scale + -low * scale).clamp(0, 255)
    return _look_up(torch.where(high > low, stretched, level).to(torch.uint8), picture)


def _equalize(picture: Tensor, _: NDArray) -> Tensor:
    n, height, width, channels = picture.shape
    planes = picture.permute(0, 3, 1, 2).reshape(n, channels, -1).long()
    counts = torch.zeros(n, channels, 256, dtype=torch.int64, device=picture.device)
    counts.scatter_add_(2, planes, torch.ones_like(planes))
    highest = counts.gather(2, planes.amax(2, keepdim=True))
    step = (height * width - highest) // 255
    below = counts.cumsum(2) - counts
    level = torch.arange(256, device=picture.device)
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return _look_up(torch.where(step > 0, spread, level).to(torch.uint8), picture)


def _look_up(levels: Tensor, picture: Tensor) -> Tensor:
    """Replace each level of each channel by its entry in `levels` (n, C, 256)."""
    n, height, width, channels = picture.shape
    planes = picture.permute(0, 3, 1, 2).reshape(n, channels, -1)
    return levels.gather(2, planes.long()).reshape(n, channels, height, width).permute(0, 2, 3, 1)


LEVEL_OPERATIONS: dict[int, Callable[[Tensor, NDArray], Tensor]] = {
    AUTO_CONTRAST: _autocontrast,
    BRIGHTNESS: _brightness,
    COLOR: _color,
    CONTRAST: _contrast,
    EQUALIZE: _equalize,
    POSTERIZE: _posterize,
    SHARPNESS: _sharpness,
    SOLARIZE: _solarize,
}
