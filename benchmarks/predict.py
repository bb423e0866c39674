"""Predict a folder of JPEGs with `cotrain predict`, against the bare network on arrays that are already decoded.

    python -m benchmarks.predict [--images 20000] [--repetitions 3]

The JPEGs have 256x256 pixels and are made up. The network is an untrained WRN-10-1 with three heads
for images of 64x64. *predict*: read, decode, resize and predict every file, and write the CSV file.
*bare network*: predict as many images from memory in batches of the same size. *one process*: as
*predict*, but the process that runs the network decodes too. They take turns. *memory* is the peak
of `cotrain predict` and its workers together, started as a process, for two numbers of images.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console

import cotrain
from benchmarks.memory import peak_of
from cotrain.data.workers import find_images, worker_count
from cotrain.inference.job import Job
from cotrain.inference.model import Model
from cotrain.inference.streaming import files_at_once

IMAGES = 20_000
REPETITIONS = 3
DIFFERENT = 200  # files; the others are links to them, which are read and decoded like any other file
SIDE = 64


def rows(images: int = IMAGES, repetitions: int = REPETITIONS) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        run, folder = small_run(place), jpegs(place, images)
        return [*speed(run, folder, repetitions, place), *memory(run, folder, images, place)]


def speed(run: Path, folder: Path, repetitions: int, place: Path) -> list[dict[str, Any]]:
    model, paths = cotrain.load(run), find_images([folder])
    seconds: dict[str, list[float]] = {"predict": [], "bare network": [], "one process": []}
    ready = torch.randint(0, 256, (1000, SIDE, SIDE, 3), dtype=torch.uint8)
    bare(model, ready, 1000)
    for turn in range(repetitions):
        counts = {"predict": worker_count(len(paths)), "one process": 0}
        for name, workers in counts.items():
            job, out = Job(model, paths, None, workers, Console(quiet=True)), place / f"{workers}-{turn}.csv"
            seconds[name].append(_timed(lambda job=job, out=out: job.to_file(out, {}, resume=False)))
        seconds["bare network"].append(_timed(lambda: bare(model, ready, len(paths))))
    return [_row(name, len(paths), times, seconds["bare network"]) for name, times in seconds.items()]


def bare(model: Model, images: torch.Tensor, count: int) -> None:
    """Predict `count` images, taken from these again and again."""
    batch = files_at_once(model)
    for start in range(0, count, batch):
        first = start % (len(images) - batch)
        model.predict(images[first : first + min(batch, count - start)])


def memory(run: Path, folder: Path, images: int, place: Path) -> list[dict[str, Any]]:
    measured = []
    for shards in (10, 1):
        command = [sys.executable, "-m", "cotrain", "predict", str(run), str(folder), "--workers", "2"]
        command += ["--shard", f"1/{shards}", "--out", str(place / f"memory-{shards}.csv")]
        peak = peak_of(command, place / "home")
        measured.append({"what": f"memory, about {images // shards:,} images", "measured": f"{1000 * peak:.0f} MB"})
    return [row | dict.fromkeys(("images/s", "of the bare network"), "") for row in measured]


def small_run(place: Path) -> Path:
    """A run of one training step."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (80, SIDE, SIDE, 3), dtype=np.uint8), np.arange(80) % 10
    settings = {"data.labels": 40, "optim.steps": 1, "optim.labelled": 8, "optim.unlabelled": 8}
    settings |= {"run.baseline": False, "run.report": False}
    data = cotrain.from_arrays(images, labels, test=(images[:10], labels[:10]))
    quiet = Console(quiet=True)
    cotrain.fit(data, out=place / "run", config=cotrain.recipe_named("small32"), settings=settings, console=quiet)
    return place / "run"


def jpegs(place: Path, images: int) -> Path:
    rng = np.random.default_rng(0)
    for number in range(images):
        path = place / "jpegs" / str(number % 100) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number >= DIFFERENT:
            os.link(place / "jpegs" / str(number % DIFFERENT % 100) / f"{number % DIFFERENT}.jpg", path)
            continue
        coarse = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(path, quality=90)
    return place / "jpegs"


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _row(what: str, images: int, times: list[float], bare_times: list[float]) -> dict[str, Any]:
    speeds = [images / f(times) for f in (min, statistics.median)]
    ratios = [f(bare_times) / f(times) for f in (min, statistics.median)]
    return {
        "what": f"{what}, {images:,} images",
        "measured": f"{min(times):.1f} s ({statistics.median(times):.1f} s)",
        "images/s": f"{speeds[0]:,.0f} ({speeds[1]:,.0f})",
        "of the bare network": f"{ratios[0]:.2f}x ({ratios[1]:.2f}x)",
    }


def main() -> None:
    from benchmarks.__main__ import markdown

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    measured = rows(arguments.images, arguments.repetitions)
    print(f"{torch.get_num_threads()} threads; minimum over {arguments.repetitions} turns (and median)\n")
    print(markdown(measured))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
