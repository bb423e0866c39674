"""Weak and strong views of uint8 image batches, equal to Pillow's in every bit.

A `Policy` says how images may change, a `Draw` holds what was decided at random for each view of a batch, and
`pixels` or `normalised` carry it out.
"""

from cotrain.augment.policy import OPS, PRESETS, Draw, Policy, draw_op, draw_plain, draw_strong, draw_weak
from cotrain.augment.views import normalised, pixels

__all__ = [
    "OPS",
    "PRESETS",
    "Draw",
    "Policy",
    "draw_op",
    "draw_plain",
    "draw_strong",
    "draw_weak",
    "normalised",
    "pixels",
]
