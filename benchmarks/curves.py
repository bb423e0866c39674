"""Time and memory of a step as one thing grows: heads, batch, image size, number of unlabelled images.

    python -m benchmarks.curves [--turns 3]

WRN-10-1 with the settings of `small32`, on made-up images. Each point takes turns with the
unchanged recipe, so `time` is a ratio of times measured together. Memory is the peak resident
memory of the process. The images of the last curve are in one file, which is read as it is used.
Writes docs/results/cost.md, cost.json and cost.png.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.__main__ import RESULTS, markdown
from benchmarks.step.table import Bench
from cotrain.comparison.race import race
from cotrain.comparison.step_worker import Task, made_up_images
from cotrain.config.recipes import recipe_named
from cotrain.data.imagefile import image_rows

BENCH = Bench(recipe_named("small32"))
CURVES = ("heads", "unlabelled images per step", "side of the images", "images in the pool")
POOLS = (10_000, 100_000, 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for curve, value, task in points(Path(place)):
            timings = race({"base": BENCH.task, "point": task}, turns)
            base, point = timings["base"], timings["point"]
            rows.append(
                {
                    "curve": curve,
                    "value": value,
                    "ms": 1000 * point.least,
                    "time": point.least / base.least,
                    "time_of_medians": point.median / base.median,
                    "gb": point.memory,
                }
            )
            print(rows[-1], flush=True)
    (RESULTS / "cost.json").write_text(json.dumps(rows, indent=1) + "\n")
    rules = (__doc__ or "").partition("[--turns 3]\n\n")[2].rpartition("Writes")[0].strip()
    figure = f"Threads: {torch.get_num_threads()}.\n\n![cost](cost.png)"
    (RESULTS / "cost.md").write_text(f"# What a step costs\n\n{rules} {figure}\n\n{markdown(rows)}\n")
    draw(rows)


def points(place: Path) -> Iterator[tuple[str, int, Task]]:
    for heads in range(1, 8):
        yield CURVES[0], heads, BENCH.changed(**{"method.heads": heads})
    for unlabelled in (16, 32, 64, 128, 256):
        yield CURVES[1], unlabelled, BENCH.changed(**{"optim.unlabelled": unlabelled})
    for side in (16, 24, 32, 48, 64, 84):
        yield CURVES[2], side, replace(BENCH.task, shape=(side, side, 3), images=2_000)
    for images in POOLS:
        yield CURVES[3], images, replace(BENCH.task, images=images, file=str(pool(place, images)))


def pool(place: Path, images: int) -> Path:
    path, few = place / f"{images}", made_up_images(10_000, 32, 32, 3)
    rows = image_rows(path, few.shape[1:])
    places = rows.add(np.arange(images, dtype=np.uint64))
    for start in range(0, images, len(few)):
        rows.write(places[start : start + len(few)], few)
    rows.save()
    return path


def draw(rows: list[dict[str, Any]]) -> None:
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), constrained_layout=True)
    for axis, curve in zip(axes, CURVES, strict=True):
        x, y, gb = (np.array([row[key] for row in rows if row["curve"] == curve]) for key in ("value", "time", "gb"))
        axis.plot(x, y, "o-", label="time, 1 = small32")
        axis.plot(x, gb, "s--", color="tab:orange", label="memory, GB")
        axis.set(xlabel=curve, ylim=(0, None), xscale="log" if curve == CURVES[3] else "linear")
    axes[0].legend()
    figure.savefig(RESULTS / "cost.png", dpi=110)


if __name__ == "__main__":
    main()
