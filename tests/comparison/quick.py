"""Comparisons that are over soon, and reading their tables."""

import csv
from pathlib import Path

from cotrain.cli.main import main
from tests.few_digits import few_digits_file

QUICK = ["--labels", "20", "--steps", "10", "--optim.labelled", "8", "--optim.unlabelled", "16"]
QUICK += ["--run.checkpoint_every", "4", "--run.report", "false"]


def command(out: Path, *words: str, recipe: str = "digits") -> list[str]:
    return ["compare", str(few_digits_file()), "--recipe", recipe, *QUICK, "--out", str(out), *words]


def compare(out: Path, *words: str, recipe: str = "digits") -> None:
    main(command(out, *words, recipe=recipe))


def rows(out: Path) -> dict[str, dict[str, str]]:
    return {row["method"]: row for row in csv.DictReader((out / "table.csv").read_text().splitlines())}
