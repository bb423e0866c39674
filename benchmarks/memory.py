"""Train on very many JPEGs of 84x84 with a small --memory, and print the peak memory of all processes together.

    python -m benchmarks.memory [--images 10000 100000] [--memory 0.2] [--limit 2] [--out docs/results/scale.json]

The images are copies of Mini-ImageNet's if COTRAIN_DATA has them, otherwise made up; 1,000 of them are labelled. The
network is that of small32, from scratch. Batches are 32 + 32, because the network's activations grow with the batch and
the images are what is measured here. The first run decodes the images, the second one finds them decoded.
The exit code is 1 if a run needed more than `--limit` GB. Rows that --out has already are not measured again.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.folder import jpegs
from cotrain.storage.writing import write_json

BATCH = ["--recipe", "small32", "--optim.labelled", "32", "--optim.unlabelled", "32"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--memory", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=float, default=2.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else []
    for images in arguments.images:
        if images not in [row["images"] for row in rows]:
            rows += measured(images, arguments.memory, arguments.steps)
            if arguments.out:
                write_json(arguments.out, rows)
    sys.exit(1 if max(row["peak_gb"] for row in rows) > arguments.limit else 0)


def measured(images: int, memory: float, steps: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        photos = copies(place, images)
        for run in ("first", "second"):
            command = [sys.executable, "-m", "cotrain", "fit", str(photos), "--memory", str(memory)]
            command += ["--steps", str(steps), "--no-baseline", "--out", str(place / run), *BATCH]
            began, before = time.monotonic(), cpu_seconds()
            row = {"images": images, "run": run, "peak_gb": round(peak_of(command, place / "home"), 3)}
            row |= {"seconds": round(time.monotonic() - began), "cpu_seconds": round(cpu_seconds() - before)}
            decoded = sum(path.stat().st_size for path in (place / "home" / "images").iterdir())
            rows.append({**row, "decoded_gb": round(decoded / 1e9, 3)})
            print(rows[-1], flush=True)
    return rows


def cpu_seconds() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copies(place: Path, images: int) -> Path:
    originals = sorted(jpegs(place).rglob("*.jpg"))
    for number in range(images):
        folder = place / "photos" / (str(number % 10) if number < 1000 else "unlabelled")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(originals[number % len(originals)], folder / f"{number}.jpg")
    return place / "photos"


def peak_of(command: list[str], home: Path) -> float:
    """Peak resident memory in GB of the process and its workers together, sampled ten times per second."""
    environment = os.environ | {"COTRAIN_HOME": str(home)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(resident(child) for child in [process.pid, *children(process.pid)]))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return peak / 1e9


def children(parent: int) -> list[int]:
    processes = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[1]) == parent:
            processes.append(int(status.parent.name))
    return processes


def resident(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
