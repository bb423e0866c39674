"""A training in a process that has not imported what draws: in a file of its own, as the tests have imported it."""

import sys
from pathlib import Path

import numpy as np

import cotrain


def fit_and_look(out: Path, track: str) -> None:
    """Prints whether what draws was imported by a short training."""
    assert "matplotlib.figure" not in sys.modules
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8)).astype(np.uint8)
    data = cotrain.from_arrays(images[:40], np.arange(40) % 2, test=(images[40:], np.arange(20) % 2))
    small = {"optim.steps": 1, "optim.labelled": 4, "optim.unlabelled": 8, "data.labels": 8}
    rest = {"run.baseline": False, "run.report": False, "run.track": track}
    cotrain.fit(data, out=out, config=cotrain.recipe_named("digits"), settings={**small, **rest})
    print("matplotlib.figure" in sys.modules)
