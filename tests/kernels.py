"""Compile the kernels of `cotrain/augment/kernel.py`, or load them from numba's cache: `python -m tests.kernels`."""

import torch

from cotrain.augment import Policy, draw_plain, normalised
from cotrain.augment.views import pixels

IMAGES = torch.zeros(1, 8, 8, 1, dtype=torch.uint8)
normalised(IMAGES, [0], draw_plain(1), Policy(), [0.5], [0.5])
pixels(IMAGES, [0], draw_plain(1), Policy())
