"""Images to try: noise, one level, slopes, few levels, dark corners of the range; tiny and not square."""

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

SIZES = [(1, 1), (1, 4), (2, 5), (3, 3), (5, 2), (7, 3), (8, 8), (9, 16), (16, 9), (32, 32), (33, 31), (84, 84)]
KINDS = ["noise", "constant", "slope", "few", "narrow"]


def picture(kind: str, height: int, width: int, channels: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    shape = (height, width, channels)
    noise = rng.integers(0, 256, shape)
    if kind == "noise":
        return noise.astype(np.uint8)
    if kind == "constant":
        return np.broadcast_to(rng.integers(0, 256, channels), shape).astype(np.uint8)
    if kind == "slope":
        y, x = np.mgrid[:height, :width]
        slopes = rng.uniform(-9, 9, (2, channels))
        return (y[..., None] * slopes[0] + x[..., None] * slopes[1] + 128).clip(0, 255).astype(np.uint8)
    if kind == "few":
        return rng.choice(rng.integers(0, 256, 4), shape).astype(np.uint8)
    low, high = np.sort(rng.integers(0, 256, 2))
    return (low + noise % (high - low + 1)).astype(np.uint8)


@st.composite
def batches(draw: st.DrawFn, channels: list[int], sizes: list[tuple[int, int]] = SIZES, n: int = 4) -> Tensor:
    """(n, H, W, C), every image of a kind of its own."""
    height, width = draw(st.sampled_from(sizes))
    count = draw(st.sampled_from(channels))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return torch.from_numpy(np.stack([picture(kind, height, width, count, rng) for kind in rng.choice(KINDS, n)]))
