"""`cotrain label`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from cotrain.cli.options import Changes, Flag, parse_changes
from cotrain.progress import terminal

Port = Annotated[int | None, Parameter(validator=validators.Number(gte=0, lte=65535))]
console = terminal()


def label_command(
    folder: Path,
    *,
    order: Literal["informative", "random"] = "informative",
    no_browser: Annotated[bool, Flag] = False,
    out: Path | None = None,
    host: str = "127.0.0.1",
    port: Port = None,
    follow_links: Annotated[bool, Flag] = False,
    labels: Path | None = None,
    size: str | None = None,
    skip_unreadable: Annotated[bool, Flag] = False,
    memory: float | None = None,
    changes: Changes = (),
) -> None:
    """Label the images of FOLDER in the browser while a model learns from the labels.

    Labels are kept in labels.csv and labels-history.jsonl in the folder. Stop with Ctrl-C and start again at any time.

    Parameters
    ----------
    folder
        A folder of images. Labels in its labels.csv or its class folders are taken over.
    order
        Which images to ask first: those that teach the model most, or random ones.
    no_browser
        Print the address, but do not open a browser.
    out
        The run folder that the button Finish writes; by default a new one in runs/.
    host
        The address to listen on. Anything but 127.0.0.1 lets other machines in.
    port
        The port to listen on; by default 8417, or a free one if it is in use.
    follow_links
        As in fit.
    labels
        The label table to read and write; by default labels.csv in the folder. Its history is kept beside it.
    size
        As in fit.
    skip_unreadable
        As in fit.
    memory
        As in fit.
    changes
        As in fit.
    """
    from cotrain.labelling.launch import Asked, serve  # slow: imports the server

    short = {"data.size": size, "data.skip_unreadable": skip_unreadable or None}
    asked = Asked(
        folder=folder,
        labels=_table(folder, labels) if labels is not None else None,
        order=order,
        host=host,
        port=port,
        out=out,
        follow_links=follow_links,
        settings={**parse_changes(changes), **{key: value for key, value in short.items() if value is not None}},
        memory=memory,
    )
    serve(asked, console, browser=not no_browser)
    sys.stdout.flush()
    os._exit(0)  # a training that still runs is not worth waiting for


def _table(folder: Path, named: Path) -> Path:
    """The table here or in the image folder, as `cotrain fit` finds it; or a new one here."""
    inside = folder / named
    return inside if inside.is_file() and not named.is_file() else named
