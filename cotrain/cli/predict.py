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
    """Predict image files: path, class, probability, how many heads agree, and an error where a file is unreadable.

    With one of the last two options there is a column `defer`, and the images that a person should look at come first.

    Parameters
    ----------
    run
        A run folder.
    images
        Image files and folders of them.
    out
        A new CSV file; by default the table is printed.
    defer_below
        Pass images on to a person whose probability is below this.
    target_error
        Pass on as many as it takes for the error of the others to be at most this, if they are like the run's valid
        images, which tell it with 95 % confidence.
    """
    if defer_below is not None and target_error is not None:
        raise UserError("--defer-below and --target-error both say what to pass on; choose one")
    if not images:
        raise UserError("predict needs image files or folders after the run folder")
    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out")
    model = load(run)
    if target_error is not None:
        promised = promised_threshold(run, model, target_error)
        defer_below = promised.probability
        shown = f"{promised.wrong} of {promised.answered} valid images that are not were wrong"
        most = rounded_up(100 * promised.bound)
        bound = f"so the error on images like the valid ones is at most {most} % (95 % confidence)"
        print(f"below {promised.probability:.9g} images are passed on: {shown}, {bound}", file=sys.stderr)
    paths = find_images(images)
    aside = Console(stderr=True)
    rows = list(
        track(
            model.predict_files(paths),
            "predicting",
            len(paths),
            console=aside,
            disable=not aside.is_terminal,
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
    to_look_at = f", {sum(row['defer'] == 'yes' for row in rows)} for a person" if defer_below is not None else ""
    print(f"{len(rows)} images, {unreadable} unreadable{to_look_at} -> {out}")


def rounded_up(bound: float) -> str:
    """With two digits: a bound holds with more, never with less."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(str(bound))):g}"
