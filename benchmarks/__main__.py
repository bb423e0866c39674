"""`make bench`: every ratio in one run, printed and kept in docs/results/bench.md and bench.json."""

import json
import platform
from pathlib import Path
from typing import Any

import torch

from benchmarks import folder, step, views

RESULTS = Path(__file__).parent.parent / "docs" / "results"
PAGE = """# Speed

Ratios measured in one run of `make bench`; repetitions alternate between the rivals; above 1, ours is faster.
{machine}, {threads} threads, torch {torch}.

## One training step: WRN-28-2, 16 labelled and 112 unlabelled images, 3 heads

{step_rules}

{step}

## A folder of JPEGs

{folder_rules}

{folder}

## Views: one thread, 448 images, microseconds an image

{views_rules}

{views}
"""


def markdown(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head)]
    lines += [[shown(row[key]) for key in head] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rules(module: Any) -> str:
    """What the module's docstring says below its first line."""
    return module.__doc__.partition("\n\n")[2].strip()


def page(measured: dict[str, list[dict[str, Any]]]) -> str:
    return PAGE.format(
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        step_rules=rules(step),
        step=markdown(measured["step"]),
        folder_rules=rules(folder),
        folder=markdown(measured["folder"]),
        views_rules=rules(views),
        views=markdown(measured["views"]),
    )


def main() -> None:
    measured = {"step": step.rows(), "folder": folder.rows(), "views": views.rows()}
    text = page(measured)
    print(text)
    (RESULTS / "bench.md").write_text(text)
    (RESULTS / "bench.json").write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
