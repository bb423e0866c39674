"""Comparisons at equal time on features: the table and the rows that `benchmarks.forest` draws.

    cotrain compare cifar10.npz --recipe photos --labels 40 --methods mhct_graph,mhct,fixmatch,supervised --seeds 10 \\
        --equal time --out runs/cifar10
    python -m benchmarks.equal_time runs/cifar10 runs/plantvillage --out equal-time.jsonl
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.photographs import NAMES, TITLES, markdown, named, rows, tables
from cotrain.runs.result import Result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparisons", type=Path, nargs="*", help="folders of `cotrain compare`; none: print only")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.comparisons:
        found = [row for folder in asked.comparisons for row in finished(folder)]
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in found))
    found = [*rows(asked.out)]
    print(f"{tables(found)}\n\n**Steps, and seconds of a run**\n\n{budgets(found)}")


def finished(comparison: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(comparison.glob("*/seed-*/result.json")):
        result = Result.read(path)
        yield {
            "data": Path(result.data.source).stem,
            "labels": result.data.labels // result.data.classes,
            "seed": result.training.seed,
            "method": result.training.method,
            "error": result.test.error,
            "images": result.test.images,
            "seconds": result.training.seconds,
            "steps": result.training.steps,
        }


def budgets(found: list[dict[str, Any]]) -> str:
    methods, sets = named(found)

    def budget(data: str, method: str) -> str:
        runs = [row for row in found if (row["data"], row["method"]) == (data, method)]
        return f"{runs[0]['steps']:,}, {statistics.median(row['seconds'] for row in runs):.1f} s" if runs else "-"

    body = [[NAMES[method], *(budget(data, method) for data in sets)] for method in methods]
    return markdown(["method", *(TITLES[data] for data in sets)], body)


if __name__ == "__main__":
    main()
