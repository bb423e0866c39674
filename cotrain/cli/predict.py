"""`cotrain predict`."""

import sys
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators
from rich.console import Console
from rich.progress import track

from cotrain.data.files import find_images
from cotrain.evaluation.predict import as_csv, deferred, how_calibrated, load, promised_threshold, write_csv
from cotrain.types import UserError

Share = Annotated[float | None, Parameter(validator=validators.Number(gte=0, lte=1))]


def predict_command(
    run: Path,
    /,
    *images: Path,
    out: Path | None = None,
    defer_below: Share = None,
    target_error: Share = None,
) -> None:
    """Predict image files: path, class, probability, number of heads that agree, and the error if a file is unreadable.

    --defer-below and --target-error add a column `defer` and list the images that a person should look at first.

    Parameters
    ----------
    run
        A run folder.
    images
        Image files, or folders of them.
    out
        A new CSV file; by default the table is printed.
    defer_below
        Defer images whose probability is below this to a person.
    target_error
        Defer as many images as needed to keep the error on the rest at or below this. The threshold is chosen on the
        run's validation images and holds with 95 % confidence for images like them.
    """
    if defer_below is not None and target_error is not None:
        raise UserError("--defer-below and --target-error both set what to defer; use only one")
    if not images:
        raise UserError("predict needs image files or folders after the run folder")
    if out is not None and out.exists():
        raise UserError(f"{out} already exists; choose another --out")
    model = load(run)
    if target_error is not None:
        promised = promised_threshold(run, model, target_error)
        defer_below = promised.probability
        evidence = f"{promised.wrong} of the other {promised.answered} validation images were wrong"
        most = rounded_up(100 * promised.bound)
        bound = f"so the error on images like them is at most {most} % (95 % confidence)"
        print(
            f"deferring images with a probability below {promised.probability:.9g}: {evidence}, {bound}",
            file=sys.stderr,
        )
    paths = find_images(images)
    progress = Console(stderr=True)
    rows = list(
        track(
            model.predict_files(paths),
            "predicting",
            len(paths),
            console=progress,
            disable=not progress.is_terminal,
            transient=True,
        )
    )
    print(how_calibrated(run), file=sys.stderr)
    if defer_below is not None:
        rows = deferred(rows, defer_below)
    if out is None:
        sys.stdout.write(as_csv(rows))
        return
    write_csv(out, rows)
    unreadable = sum(bool(row["error"]) for row in rows)
    to_review = f", {sum(row['defer'] == 'yes' for row in rows)} deferred" if defer_below is not None else ""
    print(f"{len(rows)} images, {unreadable} unreadable{to_review} -> {out}")


def rounded_up(bound: float) -> str:
    """To two significant digits. Rounding down would claim a tighter bound than the data support."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(str(bound))):g}"
