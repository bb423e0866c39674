"""Comparisons that are over soon, and reading their tables."""

import csv
from pathlib import Path

from cotrain.cli.main import main

QUICK = [
    "--labels",
    "20",
    "--steps",
    "10",
    "--optim.labelled",
    "8",
    "--optim.unlabelled",
    "16",
    "--run.checkpoint_every",
    "4",
    "--run.report",
    "false",
]


def compare(out: Path, *words: str) -> None:
    main(["compare", "digits", *QUICK, "--out", str(out), *words])


def rows(out: Path) -> dict[str, dict[str, str]]:
    return {row["method"]: row for row in csv.DictReader((out / "table.csv").read_text().splitlines())}
