"""A table: is a tumour benign? scikit-learn's 569 cases with 30 measurements, 10 of each kind labelled.

Writes tumours.csv, whose last column is empty where the label is unknown, and test.csv to the folder given on the
command line, and fits as `cotrain fit tumours.csv --target diagnosis --test test.csv` does. It needs nothing but
cotrain.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from cotrain.cli.main import main as cotrain

PER_CLASS = 10  # labels


def write(path: Path, rows: np.ndarray, known: np.ndarray) -> None:
    data = load_breast_cancer()
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*data.feature_names, "diagnosis"])
        for row, is_known in zip(rows, known, strict=True):
            writer.writerow([*data.data[row], data.target_names[data.target[row]] if is_known else ""])


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    target = load_breast_cancer().target
    order = np.random.default_rng(0).permutation(len(target))
    train, test = order[:400], order[400:]
    known = np.zeros(len(train), bool)
    for number in (0, 1):
        known[np.flatnonzero(target[train] == number)[:PER_CLASS]] = True
    write(folder / "tumours.csv", train, known)
    write(folder / "test.csv", test, np.ones(len(test), bool))
    data = [str(folder / "tumours.csv"), "--target", "diagnosis", "--test", str(folder / "test.csv")]
    cotrain(["fit", *data, "--out", str(folder / "run")])
    cotrain(["predict", str(folder / "run"), str(folder / "test.csv"), "--out", str(folder / "predictions.csv")])


if __name__ == "__main__":
    main()
