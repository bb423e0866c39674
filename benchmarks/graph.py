"""Fit on many rows with few labels: co-training with a graph against scikit-learn's semi-supervised classifiers.

    python -m benchmarks.graph                          # 100,000 rows, 128 features, 100 labels
    python -m benchmarks.graph --rows 1000000 --ours    # from a memory-mapped file, without scikit-learn

Every row is one fit in a process of its own: its error on the unlabelled rows, CPU and wall seconds, and how much its
peak memory grew. Ratios are to co-training, in CPU seconds, because others may use the machine too. The data are made:
classes are clusters of clusters, each of them long in a few directions of its own.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES, CLUSTERS, DIRECTIONS = 10, 5, 12
OURS = "co-training"
BLOCK = 50_000  # rows made at once


def make(folder: Path, rows: int, columns: int, noise: float, labels: int) -> None:
    """X.npy (rows, columns) float32, and the classes and labelled rows."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, 1, columns)) + 0.8 * rng.normal(size=(CLASSES, CLUSTERS, columns))
    centres = centres.reshape(-1, columns).astype(np.float32)
    shapes = rng.normal(size=(len(centres), DIRECTIONS, columns)).astype(np.float32) * 1.5 / np.sqrt(DIRECTIONS)
    cluster = rng.integers(len(centres), size=rows)
    written = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (rows, columns))
    for start in range(0, rows, BLOCK):
        chosen = cluster[start : start + BLOCK]
        values = centres[chosen] + noise * rng.normal(size=(len(chosen), columns)).astype(np.float32)
        for each in np.unique(chosen):
            these = chosen == each
            values[these] += rng.normal(size=(these.sum(), DIRECTIONS)).astype(np.float32) @ shapes[each]
        written[start : start + BLOCK] = values
    written.flush()
    np.savez(folder / "y.npz", classes=cluster // CLUSTERS, labelled=rng.choice(rows, labels, replace=False))


def classifier(name: str, seed: int) -> Any:
    if name.startswith(OURS):
        from cotrain.sklearn import CoTrainingClassifier

        return CoTrainingClassifier(random_state=seed, compare=name == OURS)
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

    if name == "LabelSpreading":
        return LabelSpreading(kernel="knn", n_neighbors=10)
    return SelfTrainingClassifier(LogisticRegression(max_iter=1000))


def fit(name: str, folder: Path, seed: int) -> dict[str, float]:
    """In a process of its own, because the peak of memory is that of the process."""
    X: NDArray[np.float32] = np.load(folder / "X.npy", mmap_mode="r")
    with np.load(folder / "y.npz") as file:
        classes, labelled = file["classes"], file["labelled"]
    y = np.full(len(X), -1)
    y[labelled] = classes[labelled]
    model = classifier(name, seed)
    others = np.setdiff1d(np.arange(len(X)), labelled)[:: max(1, len(X) // 20_000)]
    before, began, cpu = peak(), time.monotonic(), time.process_time()
    model.fit(X, y)
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    error = 100 * float((model.predict(X[others]) != classes[others]).mean())
    return {"error": error, "cpu": cpu, "wall": wall, "peak": peak(), "grew": peak() - before}


def peak() -> float:
    """MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--columns", type=int, default=128)
    options.add_argument("--labels", type=int, default=100)
    options.add_argument("--noise", type=float, default=1.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--ours", action="store_true", help="without scikit-learn's")
    given = options.parse_args()
    names = [f"{OURS}, no comparison", OURS] + ([] if given.ours else ["SelfTraining", "LabelSpreading"])
    print(f"{given.rows:,} rows, {given.columns} features, {given.labels} labels, {CLASSES} classes, seed {given.seed}")
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), given.rows, given.columns, given.noise, given.labels)
        ours = None
        for name in names:
            with multiprocessing.get_context("spawn").Pool(1) as process:
                found = process.apply(fit, (name, Path(folder), given.seed))
            ours = ours or found["cpu"]
            print(json.dumps({"name": name, **{key: round(value, 2) for key, value in found.items()}}), flush=True)
            print(f"    {found['cpu'] / ours:.1f} x the CPU time of the first")


if __name__ == "__main__":
    main()
