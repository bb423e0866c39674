"""Studies that are over soon, and reading what they leave."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cotrain.comparison.studies import study
from tests.few_digits import few_digits

QUICK = {
    "data.labels": 20,
    "optim.steps": 3,
    "optim.labelled": 8,
    "optim.unlabelled": 16,
    "run.report": False,
    "run.evaluate_every": 100,
}


def done(which: str, folder: Path, **changes: Any) -> dict[str, dict[str, str]]:
    """The rows of the table, by their first cell."""
    settings = QUICK | changes.pop("settings", {})
    study(which, few_digits(), out=folder, settings=settings, seeds=changes.pop("seeds", 1), **changes)
    rows = csv.DictReader((folder / "table.csv").read_text().splitlines())
    return {next(iter(row.values())): row for row in rows}


def logits_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / "scores.npz") as kept:
        return kept["test_logits"].astype(np.float64), kept["test_labels"]


def width_of(path: Path) -> int:
    with Image.open(path) as picture:
        return picture.size[0]
