"""`make bench`: every ratio in one run, printed and kept in docs/results/bench.md and bench.json."""

import json
import platform
from pathlib import Path
from typing import Any

import torch

from benchmarks import step, views

RESULTS = Path(__file__).parent.parent / "docs" / "results"
PAGE = """# Speed

Ratios measured in one run of `make bench`; repetitions alternate between the rivals; above 1, ours is faster.
{machine}, {threads} threads, torch {torch}.

## One training step: WRN-28-2, 16 labelled and 112 unlabelled images, 3 heads

{step_rules}

{step}

## Views: one thread, 448 images, microseconds an image

{views_rules}

{views}
"""


def markdown(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head)]
    lines += [[f"{row[key]:.3g}" if isinstance(row[key], float) else str(row[key]) for key in head] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rules(module: Any) -> str:
    """What the module's docstring says below its first line."""
    return module.__doc__.partition("\n\n")[2].strip()


def main() -> None:
    measured = {"step": step.rows(), "views": views.rows()}
    page = PAGE.format(
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        step_rules=rules(step),
        step=markdown(measured["step"]),
        views_rules=rules(views),
        views=markdown(measured["views"]),
    )
    print(page)
    (RESULTS / "bench.md").write_text(page)
    (RESULTS / "bench.json").write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
