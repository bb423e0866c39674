"""Decode a folder of JPEGs, open it again, and wait for its batches during training.

The folder is `miniimagenet` in the folder that COTRAIN_DATA names, or 3,000 made-up JPEGs of 84x84.
*decode*: scan, decode and resize to 64x64 into a new copy. *open*: find everything unchanged and
map the copy. *wait*: the fraction of the time that training a WRN-10-1 at 84x84 waits for batches,
with the images in memory and on disk.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cotrain import recipe_named
from cotrain.data import Dataset, DataSettings, cache, draw_split, open_data
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.experiment import Experiment

REPETITIONS = 5
STEPS = 12


def rows() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place, _home(Path(place)):
        folder = jpegs(Path(place))
        return [*decoding(folder, Path(place)), *waiting(folder)]


def decoding(folder: Path, place: Path) -> list[dict[str, Any]]:
    one, two, again = [], [], []
    for _ in range(REPETITIONS):
        one.append(_timed(lambda: _decode(folder, place, workers=1)))
        two.append(_timed(lambda: _decode(folder, place, workers=2)))
        again.append(_timed(lambda: _open(folder)))
    return [
        _row("decode: 2 workers against 1", one, two, "1.6"),
        _row("open again against decode with 2 workers", two, again, "20"),
    ]


def waiting(folder: Path) -> list[dict[str, Any]]:
    return [
        {
            "what": f"wait for data, {where}",
            "measured": f"{100 * fraction:.2f} % of {seconds:.0f} s",
            "target": "below 5 %",
        }
        for where, memory in (("images in memory", 100.0), ("images on disk", 0.0))
        for fraction, seconds in [_waited(open_data(folder, memory=memory))]
    ]


def _waited(dataset: Dataset) -> tuple[float, float]:
    config = recipe_named("small32")
    split = draw_split(dataset, DataSettings(), seed=0)
    device = torch.device("cpu")
    keep_freed_memory()
    training = Experiment(config, dataset, split, device).start()
    training.source.batch(0)  # compiles the views
    batches, waited, began = training.batches(STEPS), 0.0, time.monotonic()
    for _ in range(STEPS):
        asked = time.monotonic()
        batch = next(batches)
        waited += time.monotonic() - asked
        training.update(batch)
    seconds = time.monotonic() - began
    return waited / seconds, seconds


def jpegs(place: Path) -> Path:
    """Mini-ImageNet's folder if COTRAIN_DATA has it, otherwise made-up images of smooth noise."""
    real = Path(os.environ.get("COTRAIN_DATA", "")) / "miniimagenet"
    if real.is_dir():
        return real
    rng = np.random.default_rng(0)
    for number in range(3000):
        path = place / "jpegs" / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        coarse.resize((84, 84), Image.Resampling.BICUBIC).save(path, quality=90)
    return place / "jpegs"


def _decode(folder: Path, place: Path, workers: int) -> None:
    shutil.rmtree(place / "images", ignore_errors=True)
    counted, cache.worker_count = cache.worker_count, lambda files: workers
    try:
        _open(folder)
    finally:
        cache.worker_count = counted


def _open(folder: Path) -> Dataset:
    return open_data(folder, DataSettings(size="64"))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _row(what: str, slower: list[float], faster: list[float], target: str) -> dict[str, Any]:
    ratios = [f(slower) / f(faster) for f in (min, statistics.median)]
    return {"what": what, "measured": f"{ratios[0]:.2f}x (minima), {ratios[1]:.2f}x (medians)", "target": f"{target}x"}


@contextmanager
def _home(place: Path) -> Iterator[None]:
    before = os.environ.get("COTRAIN_HOME")
    os.environ["COTRAIN_HOME"] = str(place)
    try:
        yield
    finally:
        del os.environ["COTRAIN_HOME"]
        if before is not None:
            os.environ["COTRAIN_HOME"] = before
