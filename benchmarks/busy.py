"""A training step on a quiet machine and next to a busy process: `python -m benchmarks.busy`.

The step is that of `cotrain fit digits`. The busy process is a Python loop that occupies one core. All
settings take turns, on the quiet and on the busy machine. Times are milliseconds per step: the
minimum over all turns and, in brackets, the median. A ratio divides by the best quiet time in the
table. *Spins* are how often an OpenMP thread checks for work before it sleeps (GOMP_SPINCOUNT).
`OMP_WAIT_POLICY=PASSIVE` means none, `ACTIVE` means 30 billion.
"""

from dataclasses import replace
from typing import Any

import torch

from cotrain.comparison.race import race
from cotrain.comparison.step_worker import Task
from cotrain.config.recipes import recipe_named
from cotrain.openmp import SPINS

DEMO = Task(recipe_named("digits").model_dump(), shape=(16, 16, 1), images=1300)
DEFAULT = f"cotrain's default: {int(SPINS):,} spins, 100 while busy"
SETTINGS = {
    DEFAULT: DEMO,
    "libgomp's default: 300,000 spins": replace(DEMO, spins="300000"),
    "ACTIVE: 30 billion spins": replace(DEMO, spins="30000000000"),
    "PASSIVE: no spins": replace(DEMO, spins="0"),
    f"{int(SPINS):,} spins always": replace(DEMO, spins=f"0{SPINS}"),  # written otherwise, it is a user's setting
    "1,000 spins always": replace(DEMO, spins="1000"),
    "one thread": replace(DEMO, threads=1),
}
TURNS = 7
TURN_SECONDS = 2.0  # the default looks at the machine for a quarter of a second first
TARGETS = "at most 1.1 and 2.2"


def rows(turns: int = TURNS) -> list[dict[str, Any]]:
    loads = {"quiet": 0, "busy": 1}
    tasks = {f"{name}, {load}": replace(SETTINGS[name], beside=loads[load]) for name in SETTINGS for load in loads}
    timings = race(tasks, turns, TURN_SECONDS)
    quiet = [timings[f"{name}, quiet"] for name in SETTINGS]
    least, median = min(timing.least for timing in quiet), min(timing.median for timing in quiet)
    table = []
    for name in SETTINGS:
        row: dict[str, Any] = {"setting": name}
        for load in loads:
            timing = timings[f"{name}, {load}"]
            row[f"{load} ms"] = f"{1000 * timing.least:.0f} ({1000 * timing.median:.0f})"
            row[f"{load} ratio"] = f"{timing.least / least:.2f} ({timing.median / median:.2f})"
        table.append(row | {"targets": TARGETS if name == DEFAULT else ""})
    return table


def main() -> None:
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {TURNS} turns")
    for row in rows():
        print("".join(f"{value:<54}" if key == "setting" else f"{value:<16}" for key, value in row.items()))


if __name__ == "__main__":
    main()
