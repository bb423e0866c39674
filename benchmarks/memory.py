"""Memory and time of `cotrain fit` as the number of images grows, and a figure of both.

    python -m benchmarks.memory [--images 10000 100000 1000000] [--memory 0.02] [--photos FOLDER]

The images are JPEGs of 32x32 pixels; 1,000 are labelled. 5,000 are made up, and the rest are links to them. The network
is as small as can be and trains from scratch for a few steps, because the images are what is measured here. The first
run decodes the images, the second one finds them decoded. Memory is the peak of the process and its decode workers
together.

Writes docs/results/scale.json after every run, and scale.png. Runs that the file has already are not repeated. With
--photos, the JPEGs are kept in that folder.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import psutil
from PIL import Image
from torch import nn

from benchmarks.__main__ import RESULTS
from cotrain.storage.writing import write_json

RUNS = ("first", "second")
LABELLED, DIFFERENT = 1_000, 5_000
SIDE = 32
SETTINGS = ["--recipe", "small32", "--optim.labelled", "32", "--optim.unlabelled", "32"]
SETTINGS += ["--model.backbone", "benchmarks.memory:build", "--no-baseline"]


def build(*, channels: int, classes: int) -> tuple[nn.Module, Callable[[], nn.Module]]:
    """A network that costs next to nothing."""
    trunk = nn.Sequential(nn.Conv2d(channels, 8, 8, stride=8), nn.ReLU(), nn.Flatten())
    return trunk, lambda: nn.Linear(8 * (SIDE // 8) ** 2, classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--memory", type=float, default=0.02, help="GB of decoded images that may stay in memory")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "scale.json")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    with tempfile.TemporaryDirectory() as temporary:
        photos = options.photos or Path(temporary) / "photos"
        for images in sorted(options.images):
            if all((images, run) in [(row["images"], row["run"]) for row in rows] for run in RUNS):
                continue
            make_up(photos, images)
            place = Path(temporary) / str(images)
            for run in RUNS:
                rows.append({"images": images, "run": run, **measured(photos, place, run, options)})
                print(rows[-1], flush=True)
                write_json(options.out, rows)
    draw(rows, options.out.with_suffix(".png"))


def measured(photos: Path, place: Path, run: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "cotrain", "fit", str(photos), "--memory", str(options.memory)]
    command += ["--steps", str(options.steps), "--out", str(place / run), *SETTINGS]
    began, before = time.monotonic(), cpu_seconds()
    row = {"peak_gb": round(peak_of(command, place / "home"), 3)}
    row |= {"seconds": round(time.monotonic() - began), "cpu_seconds": round(cpu_seconds() - before)}
    decoded = sum(path.stat().st_size for path in (place / "home" / "images").iterdir())
    return {**row, "decoded_gb": round(decoded / 1e9, 3)}


def make_up(photos: Path, images: int) -> None:
    """Add JPEGs of smooth noise, and then links to them, until there are so many files."""
    for folder in [*map(str, range(10)), "unlabelled"]:
        (photos / folder).mkdir(parents=True, exist_ok=True)
    here = sum(len(os.listdir(folder)) for folder in photos.iterdir())
    for number in range(here, images):
        path = photos / (str(number % 10) if number < LABELLED else "unlabelled") / f"{number}.jpg"
        if number >= DIFFERENT:
            os.link(path.with_name(f"{LABELLED + number % (DIFFERENT - LABELLED)}.jpg"), path)
            continue
        coarse = Image.fromarray(np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8))
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


def cpu_seconds() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_of(command: list[str], home: Path) -> float:
    """Peak resident memory in GB of the process and those that it started, sampled ten times per second."""
    environment = os.environ | {"COTRAIN_HOME": str(home)}
    process = psutil.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        with suppress(psutil.Error):
            peak = max(peak, sum(resident(each) for each in [process, *process.children(recursive=True)]))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return peak / 1e9


def resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure, (memory, seconds) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    words = {"first": "first run: decodes the images", "second": "second run: finds them decoded"}
    for run, marker in zip(RUNS, "os", strict=True):
        points = sorted((row for row in rows if row["run"] == run), key=lambda row: row["images"])
        images = [row["images"] for row in points]
        memory.plot(images, [row["peak_gb"] for row in points], marker=marker, label=words[run])
        seconds.plot(images, [row["cpu_seconds"] for row in points], marker=marker, label=words[run])
    on_disk = dict(sorted((row["images"], row["decoded_gb"]) for row in rows))
    memory.plot([*on_disk], [*on_disk.values()], "k:", label="the images, decoded, on disk")
    memory.set(xscale="log", xlabel="images", ylabel="peak resident memory (GB)", ylim=0)
    seconds.set(xscale="log", yscale="log", xlabel="images", ylabel="CPU seconds")
    memory.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
