"""`make bench`: measure every ratio in one run, print them, and write docs/results/bench.md and bench.json."""

import json
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import busy, folder, views
from benchmarks.step.table import Bench, Row
from cotrain.config.recipes import recipe_named

RESULTS = Path(__file__).parent.parent / "docs" / "results"
SMALL = recipe_named("small32")
WIDE = SMALL.changed({"model.backbone": "wrn-28-2", "optim.labelled": 16, "optim.unlabelled": 112})
PAGE = """# Speed

Measured in one run of `make bench` on {machine}, {threads} threads, torch {torch}. The two sides of a
comparison take turns. Times are the minimum over all turns; ratios are of the minima and (in
brackets) of the medians. A ratio is the other's time divided by ours: above 1, ours is faster.
Everything except the views runs with as many threads as there are cores.

The *step* is the training loop without its files: views, forward, backward, optimiser, averaged
weights (EMA), monitors. Its *bare convolutions and batch-norms* are computed one by one at the
shapes of the step; the target of 0.8 means that the step takes 1.25 times as long as they do. The
*released computation* is the step as the paper's code has it. It has one NCHW batch of labelled,
weak and strong images, all of which go through the backward pass. Pillow makes the views image by
image (one step ahead, like ours), the optimiser and the averaged weights go tensor by tensor, and
memory is given back to the system, as by default. Weights, images and views are the same, and so is
the loss.

*Views* are normalised floats. Our times include drawing the random choices. Pillow gets them drawn
and unpacked beforehand, and its flip and crop are one numpy lookup, so that each image is converted
once.

{steps}

## A busy machine

{busy_rules}

{busy}

## A folder of JPEGs

{folder_rules}

{folder}

## Operations of the views: one thread, 448 images, microseconds per image

{views_rules}

{views}
"""


def comparisons() -> dict[str, list[Callable[[], Row]]]:
    small, wide = Bench(SMALL), Bench(WIDE, turns=3)
    larger = Bench(SMALL, (84, 84, 3))
    return {
        "WRN-28-2, 3 heads, 16 labelled and 112 unlabelled images of 32x32": wide.comparisons(released=2.5),
        "WRN-10-1, 3 heads, 32 labelled and 64 unlabelled images of 32x32": small.comparisons(released=4.0),
        "Views: one thread, 448 images": [
            partial(small.views, "strong", 20.0),
            partial(small.views, "weak", 20.0),
            partial(larger.views, "strong", 5.0),
            partial(larger.views, "weak"),
        ],
    }


def as_shown(row: Row) -> dict[str, str]:
    return {
        "ours": row.what,
        "against": row.other,
        "our ms": f"{1000 * row.ours.least:.4g}",
        "its ms": f"{1000 * row.others.least:.4g}",
        "ratio": f"{row.ratio:.2f} ({row.ratio_of_medians:.2f})",
        "target": "" if row.target is None else f"{row.target:g}",
        "GB": f"{row.ours.memory:.1f} / {row.others.memory:.1f}",
        "": row.note,
    }


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
    """The module's docstring below its first line."""
    return module.__doc__.partition("\n\n")[2].strip()


def main() -> None:
    measured: dict[str, list[Row]] = {}
    for title, compare in comparisons().items():
        print(title, flush=True)
        for one in compare:
            row = one()
            measured.setdefault(title, []).append(row)
            print("  ", *as_shown(row).values(), flush=True)
    loads, folders, operations = busy.rows(), folder.rows(), views.rows()
    text = PAGE.format(
        machine=platform.processor() or platform.machine(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        steps="\n\n".join(
            f"## {title}\n\n{markdown([as_shown(row) for row in rows])}" for title, rows in measured.items()
        ),
        busy_rules=rules(busy),
        busy=markdown(loads),
        folder_rules=rules(folder),
        folder=markdown(folders),
        views_rules=rules(views),
        views=markdown(operations),
    )
    print(text)
    (RESULTS / "bench.md").write_text(text)
    everything = {title: [row.as_dict() for row in rows] for title, rows in measured.items()}
    everything |= {"busy": loads, "folder": folders, "operations": operations}
    (RESULTS / "bench.json").write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
