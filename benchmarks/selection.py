"""Which of two models to keep, judged on few validation images: what the rule costs and saves.

    python -m benchmarks.selection runs/scratch/svhn-1000 runs/scratch/cifar10-1000 --method mhct_routed

Reads comparisons with `supervised` and with validation images (`cotrain compare ... --data.valid_share 0.1`). For every
seed it draws validation images at random, keeps a model by each rule, and averages its test error: `fewer` keeps the
model with fewer mistakes, `clear` the method unless the labelled-only network is clearly better.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.photographs import markdown
from cotrain.evaluation.verdict import CHANCE, is_wrong, sign_test
from cotrain.runs.run import SCORES, Run
from cotrain.runs.scores import read_outputs

DRAWS = 1000
SIZES = (50, 100, 200, 500)  # validation images
Mistakes = dict[str, NDArray[np.bool_]]  # by part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparisons", nargs="+", type=Path)
    parser.add_argument("--method", default="mhct_routed")
    asked = parser.parse_args()
    body = [row for folder in asked.comparisons for row in rows(folder, asked.method)]
    head = ["comparison", "n", "method %", "labelled-only %", "images", "`fewer` %", "`clear` %", "`fewer` is wrong %"]
    print(markdown(head, body))


def rows(folder: Path, method: str) -> Iterator[list[str]]:
    pairs = [
        (mistakes(run), mistakes(folder / "supervised" / run.name))
        for run in sorted((folder / method).glob("seed-*"))
        if (run / SCORES).exists() and (folder / "supervised" / run.name / SCORES).exists()
    ]
    errors = [tuple(100 * each["test"].mean() for each in pair) for pair in pairs]
    ours, baseline = (statistics.mean(column) for column in zip(*errors, strict=True))
    for size in SIZES:
        kept = [chosen(*pair, size) for pair in pairs]
        fewer, clear, wrong = (statistics.mean(column) for column in zip(*kept, strict=True))
        yield [
            folder.name,
            str(len(pairs)),
            f"{ours:.1f}",
            f"{baseline:.1f}",
            str(size),
            f"{fewer:.1f}",
            f"{clear:.1f}",
            f"{wrong:.0f}",
        ]


def mistakes(run: Path) -> Mistakes:
    rule = Run.open(run).config.run.ensemble
    return {part: is_wrong(outputs, rule) for part, outputs in read_outputs(run / SCORES).items()}


def chosen(ours: Mistakes, baseline: Mistakes, size: int) -> tuple[float, float, float]:
    """The mean test error of the model kept by each rule, and how often `fewer` keeps the worse one, in percent."""
    rng = np.random.default_rng(0)
    tests = 100 * ours["test"].mean(), 100 * baseline["test"].mean()
    found = []
    for _ in range(DRAWS):
        drawn = rng.choice(len(ours["valid"]), size, replace=False)
        lost = int((ours["valid"] & ~baseline["valid"])[drawn].sum())
        gained = int((~ours["valid"] & baseline["valid"])[drawn].sum())
        fewer = lost > gained
        clear = fewer and sign_test(lost, gained) < CHANCE
        found.append((tests[fewer], tests[clear], 100 * (tests[fewer] > min(tests))))
    fewer_error, clear_error, wrong = np.mean(found, axis=0)
    return float(fewer_error), float(clear_error), float(wrong)


if __name__ == "__main__":
    main()
