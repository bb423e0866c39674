"""Apply a `Draw`: with the compiled kernel for images on the CPU, with batched tensor operations on other devices."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.augment import tensor
from cotrain.augment.policy import CUTOUT_LUMA, CUTOUT_RGB, TRUNCATED, Draw, Policy

Rows = Sequence[int] | NDArray[np.int64] | Tensor
NO_FORMULA = np.empty((3, 0), np.float32)
Route = Literal["auto", "kernel", "tensor"]


def pixels(images: Tensor, rows: Rows, draw: Draw, policy: Policy, *, threads: int = 1, path: Route = "auto") -> Tensor:
    """Views of images[rows] as uint8 (n, H, W, C); FixMatch's mid-grey, 127.5, becomes 127."""
    levels = np.append(np.arange(256), 127).astype(np.uint8)
    return _render(images, rows, draw, policy, np.tile(levels, (images.shape[3], 1)), NO_FORMULA, threads, path)


def normalised(
    images: Tensor,
    rows: Rows,
    draw: Draw,
    policy: Policy,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    threads: int = 1,
    path: Route = "auto",
) -> Tensor:
    """Views of images[rows] as float32 (n, C, H, W), channels last in memory: (pixel / 255 - mean) / std."""
    channels = images.shape[3]
    if not len(mean) == len(std) == channels:
        raise ValueError(f"images with {channels} channels need as many means and stds, got {len(mean)} and {len(std)}")
    table, formula = _normalisation(tuple(mean), tuple(std))
    return _render(images, rows, draw, policy, table, formula, threads, path).permute(0, 3, 1, 2)


@lru_cache(maxsize=16)
def _normalisation(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[NDArray, NDArray]:
    """The table of all levels, and the kernel's formula if it gives bit-exact results."""
    from cotrain.augment import kernel  # slow to import: numba

    channels, centre, spread = len(mean), np.array(mean, np.float32), np.array(std, np.float32)
    levels = np.append(np.arange(256, dtype=np.float32) / np.float32(255), np.float32(0.5))
    table = (levels - centre[:, None]) / spread[:, None]
    scale = (1 / spread.astype(np.float64)).astype(np.float32)
    rest = (1 / spread.astype(np.float64) - scale).astype(np.float32)
    formula = np.tile(np.stack([centre, scale, rest]), 16)
    calculated = np.empty((256, channels), np.float32)
    kernel.calculate(np.arange(256, dtype=np.uint8).repeat(channels), formula, calculated.ravel())
    return table, formula if np.array_equal(calculated, table[:, :256].T) else NO_FORMULA


def _render(
    images: Tensor, rows: Rows, draw: Draw, policy: Policy, table: NDArray, formula: NDArray, threads: int, path: Route
) -> Tensor:
    """`table` (C, 257) has the output for each level of each channel, and last for mid-grey."""
    rows = torch.as_tensor(rows, dtype=torch.int64)
    _check(images, rows, draw)
    channels = images.shape[3]
    cutout = np.array(CUTOUT_RGB if channels == 3 else [CUTOUT_LUMA] * channels, np.uint8)
    if path == "tensor" or (path == "auto" and images.device.type != "cpu"):
        return tensor.render(images, rows, draw, policy, cutout, table)
    arrays = images.contiguous().numpy(), rows.cpu().contiguous().numpy()  # for other layouts numba would compile again
    return torch.from_numpy(_run_kernel(*arrays, draw, policy, cutout, table, formula, threads))


def _run_kernel(
    images: NDArray,
    rows: NDArray,
    draw: Draw,
    policy: Policy,
    cutout: NDArray,
    table: NDArray,
    formula: NDArray,
    threads: int,
) -> NDArray:
    from cotrain.augment import kernel  # slow to import: numba

    out = np.empty((len(rows), *images.shape[1:]), table.dtype)
    style = (policy.pad == "zero", policy.order == "ops_first", policy.fill == "grey", policy.cutout == "fixed")
    truncated = np.tile(TRUNCATED, (images.shape[3], 1))

    def render_part(part: slice) -> None:
        piece = draw[part]
        decisions = tuple(np.ascontiguousarray(getattr(piece, field.name)) for field in fields(Draw))
        kernel.render(images, rows[part], decisions, style, cutout, truncated, table, formula, out[part])

    if threads == 1:
        render_part(slice(len(rows)))
    else:
        ends = np.linspace(0, len(rows), threads + 1).astype(int).tolist()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(render_part, map(slice, ends, ends[1:])))
    return out


def _check(images: Tensor, rows: Tensor, draw: Draw) -> None:
    """The kernel does not check bounds: refuse anything that would read or write outside the arrays."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(f"images must be uint8 of shape (N, H, W, C), not {images.dtype} of {tuple(images.shape)}")
    if len(rows) != len(draw):
        raise ValueError(f"{len(rows)} rows but a draw of {len(draw)} views")
    if len(rows) == 0:
        return
    if rows.device.type == "cpu":
        lowest, highest = rows.numpy().min(), rows.numpy().max()
        if lowest < 0 or highest >= len(images):
            raise IndexError(f"rows must be in 0..{len(images) - 1}, not {lowest}..{highest}")
    height, width = images.shape[1:3]
    if (draw.boxes > [width, height, width, height]).any() or (abs(draw.shift) >= [height, width]).any():
        raise ValueError(f"the draw was made for images larger than {height}x{width}")
