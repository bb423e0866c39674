"""Train on 100,000 JPEGs of 84x84 that may take half a GB of memory, and print the peak that the process took.

    python -m benchmarks.memory [--images 100000] [--memory 0.5]

The images are copies of Mini-ImageNet's if COTRAIN_DATA has them, else made up; 1,000 of them have a label.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.folder import jpegs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--memory", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        originals = sorted(jpegs(place).rglob("*.jpg"))
        photos = place / "photos"
        for number in range(arguments.images):
            name = str(number % 10) if number < 1000 else "unlabelled"
            (photos / name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(originals[number % len(originals)], photos / name / f"{number}.jpg")
        command = [sys.executable, "-m", "cotrain", "fit", str(photos), "--memory", str(arguments.memory)]
        command += ["--steps", str(arguments.steps), "--no-baseline"]
        for attempt in ("first run, decodes", "second run, opens the copy"):
            began = time.monotonic()
            run = [*command, "--out", str(place / f"run-{attempt.split()[0]}")]
            process = subprocess.Popen(run, env=os.environ | {"COTRAIN_HOME": str(place / "home")})
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            decoded = sum(path.stat().st_size for path in (place / "home" / "images").iterdir())
            print(
                f"{attempt}: {arguments.images:,} images, {decoded / 1e9:.2f} GB decoded, --memory {arguments.memory}: "
                f"peak resident {usage.ru_maxrss / 1e6:.2f} GB, {time.monotonic() - began:.0f} s, "
                f"exit code {process.returncode}",
                flush=True,
            )


if __name__ == "__main__":
    main()
