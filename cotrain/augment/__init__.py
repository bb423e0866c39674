"""Weak and strong views of uint8 image batches, bit-exact with Pillow, and of rows of features.

A `Policy` holds the augmentation settings, a `Draw` holds the random decisions for each view of a batch, and `pixels`
or `normalised` apply them. `features.py` does the same for rows of features.
"""

from cotrain.augment.feature_views import FeaturePolicy
from cotrain.augment.policy import OPS, PRESETS, Draw, Policy, draw_op, draw_plain, draw_strong, draw_weak, joined
from cotrain.augment.views import normalised, pixels

__all__ = [
    "OPS",
    "PRESETS",
    "Draw",
    "FeaturePolicy",
    "Policy",
    "draw_op",
    "draw_plain",
    "draw_strong",
    "draw_weak",
    "joined",
    "normalised",
    "pixels",
]
