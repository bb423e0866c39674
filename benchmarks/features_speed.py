"""How long a fit on many rows takes, against scikit-learn's semi-supervised classifiers, in one run.

    python -m benchmarks.features_speed                     # 100,000 rows of 128 features, 100 labels
    python -m benchmarks.features_speed --large             # 1,000,000 rows from a memory-mapped file

The rows are made up: ten overlapping clusters. CPU seconds of one thread; a ratio above 1 means that the other takes
longer than co-training.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from threadpoolctl import threadpool_limits

from cotrain.sklearn import CoTrainingClassifier

COLUMNS, CLASSES, LABELS = 128, 10, 100
OURS = "CoTrainingClassifier"
AT_ONCE = 50_000


def clusters(path: Path, rows: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """The rows in a memory-mapped file, their classes, and the few that are known."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, COLUMNS)) * 0.35
    y = rng.integers(0, CLASSES, rows)
    x = np.lib.format.open_memmap(path, "w+", np.float32, (rows, COLUMNS))
    for start in range(0, rows, AT_ONCE):
        own = y[start : start + AT_ONCE]
        x[start : start + AT_ONCE] = centres[own] + rng.normal(size=(len(own), COLUMNS))
    x.flush()
    known = np.full(rows, -1)
    for number in range(CLASSES):
        own = np.flatnonzero(y == number)[: LABELS // CLASSES]
        known[own] = number
    return np.load(path, mmap_mode="r"), y, known


def timed(name: str, model: Any, x: NDArray, y: NDArray, known: NDArray) -> float:
    memory, began, cpu = psutil.Process().memory_info().rss, time.monotonic(), time.process_time()
    model.fit(x, known)
    seconds, wall = time.process_time() - cpu, time.monotonic() - began
    grown = (psutil.Process().memory_info().rss - memory) / 1e6
    error = 100 * np.mean(model.predict(x[:5000]) != y[:5000])
    print(f"{name}: {seconds:.1f} CPU s, {wall:.1f} s, error {error:.1f} %, {grown:+,.0f} MB", flush=True)
    return seconds


def models(rivals: bool) -> dict[str, Any]:
    ours = {
        OURS: CoTrainingClassifier(random_state=0),
        f"{OURS}, compare=False": CoTrainingClassifier(compare=False, random_state=0),
    }
    if not rivals:
        return ours
    return ours | {
        "SelfTrainingClassifier(LogisticRegression)": SelfTrainingClassifier(LogisticRegression(max_iter=1000)),
        'LabelSpreading(kernel="knn")': LabelSpreading(kernel="knn"),
    }


def table(found: dict[str, list[float]]) -> str:
    """Minimum and median of each, and the ratios to ours of each repeat."""
    lines = ["| | CPU seconds: minimum | median | ratio: minimum | median |", "|---|---:|---:|---:|---:|"]
    for name, seconds in found.items():
        ratios = [other / ours for other, ours in zip(seconds, found[OURS], strict=True)]
        numbers = (min(seconds), median(seconds), min(ratios), median(ratios))
        lines.append(f"| {name} | {' | '.join(f'{number:.2f}' for number in numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="of all models, one after the other")
    asked = parser.parse_args()
    rows = asked.rows or (1_000_000 if asked.large else 100_000)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        x, y, known = clusters(Path(folder) / "x.npy", rows)
        print(f"{rows:,} rows of {COLUMNS} features, {LABELS} labels, {CLASSES} classes")
        CoTrainingClassifier(settings={"optim.steps": 2}, compare=False).fit(x[:200], known[:200])  # imports
        found: dict[str, list[float]] = {}
        for _ in range(asked.repeats):
            for name, model in models(rivals=not asked.large).items():
                found.setdefault(name, []).append(timed(name, model, x, y, known))
    print(table(found))


if __name__ == "__main__":
    main()
