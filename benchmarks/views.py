"""The speed of each operation of the views relative to Pillow, on one thread: `python -m benchmarks.views`.

Both sides turn bytes into bytes. Each runs in blocks of about equal length, which alternate. Freed
memory is kept for both, as in training.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.step.pillow import apply
from cotrain.augment import OPS, PRESETS, draw_op, pixels
from cotrain.augment.policy import PAPER_RANGES
from cotrain.comparison.step_worker import made_up_images
from cotrain.training.allocator import keep_freed_memory

BATCH = 448
EVERY_ROW = np.arange(BATCH)
REPETITIONS = 7
BLOCK_SECONDS = 0.05
POLICY = PRESETS["paper"]


@dataclass(frozen=True)
class Race:
    """The same batch, made by our code and by others."""

    views: str
    side: int
    ours: dict[str, Callable[[], Any]]
    others: dict[str, Callable[[], Any]]


def rows() -> list[dict[str, Any]]:
    """One row per pair of ours and another; times are microseconds per image."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [row for side in (32, 84) for race in operation_races(side) for row in run(race)]
    finally:
        torch.set_num_threads(threads)


def run(race: Race) -> Iterator[dict[str, Any]]:
    racers = race.ours | race.others
    batches = {name: batches_per_block(make) for name, make in racers.items()}
    times: dict[str, list[float]] = {name: [] for name in racers}
    for _ in range(REPETITIONS):
        for name, make in racers.items():
            times[name].append(seconds(make, batches[name]) / batches[name] / BATCH * 1e6)
    for our, other in ((our, other) for our in race.ours for other in race.others):
        yield {
            "views": race.views,
            "side": race.side,
            "ours": our,
            "other": other,
            "our_min": min(times[our]),
            "our_median": statistics.median(times[our]),
            "other_min": min(times[other]),
            "other_median": statistics.median(times[other]),
            "images_per_second": 1e6 / min(times[our]),
            "ratio": min(times[other]) / min(times[our]),
            "ratio_of_medians": statistics.median(times[other]) / statistics.median(times[our]),
        }


def batches_per_block(make: Callable[[], Any]) -> int:
    """So many that all blocks last about equally long."""
    make()
    return max(1, round(BLOCK_SECONDS / seconds(make, 1)))


def seconds(make: Callable[[], Any], batches: int) -> float:
    start = time.perf_counter()
    for _ in range(batches):
        make()
    return time.perf_counter() - start


def operation_races(side: int) -> Iterator[Race]:
    """Each operation by itself, from bytes to bytes."""
    images, rng = torch.from_numpy(made_up_images(BATCH, side, side, 3)), np.random.default_rng(0)
    for name in OPS:
        magnitudes = rng.uniform(*PAPER_RANGES.get(name, (0, 0)), BATCH)
        draw = draw_op(name, magnitudes, side, side)
        ours = {"kernel": partial(pixels, images, EVERY_ROW, draw, POLICY)}
        yield Race(name, side, ours, {"Pillow": partial(apply_each, name, images.numpy(), magnitudes.tolist())})


def apply_each(name: str, arrays: NDArray, magnitudes: list[float]) -> NDArray[np.uint8]:
    out = np.empty_like(arrays)
    for array, magnitude, slot in zip(arrays, magnitudes, out, strict=True):
        slot[:] = np.asarray(apply(Image.fromarray(array), name, magnitude))
    return out


def main() -> None:
    print(f"batch {BATCH}, one thread, {REPETITIONS} alternating blocks, microseconds per image: min (median)")
    print(f"{'views':13}{'size':>8}{'ours':>8}{'':>17}{'other':>8}{'':>19}{'ratio':>9}{'':>10}{'images/s':>10}")
    for row in rows():
        our, other = (f"{row[f'{who}_min']:9.2f} ({row[f'{who}_median']:.2f})" for who in ("our", "other"))
        ratio = f"{row['ratio']:8.1f}x ({row['ratio_of_medians']:.1f}x)"
        size = f"{row['side']}x{row['side']}"
        print(
            f"{row['views']:13}{size:>8}{row['ours']:>8}{our:<17}{row['other']:>8}{other:<19}{ratio:<19}"
            f"{row['images_per_second']:10.0f}"
        )


if __name__ == "__main__":
    main()
