"""`cotrain label`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators
from rich.console import Console

from cotrain.cli.options import Flag, Options
from cotrain.types import UserError

Port = Annotated[int | None, Parameter(validator=validators.Number(gte=0, lte=65535))]
console = Console()


def label_command(
    folder: Path,
    *,
    order: Literal["informative", "random"] = "informative",
    no_browser: Annotated[bool, Flag] = False,
    out: Path | None = None,
    host: str = "127.0.0.1",
    port: Port = None,
    follow_links: Annotated[bool, Flag] = False,
    options: Options | None = None,
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
        Also show images that are links to files outside the folder.
    """
    from cotrain.labelling.serving import Asked, serve  # slow: imports the server

    options = options or Options()
    settings = options.settings
    if "data.labels" in settings:
        raise UserError(f"--labels {options.labels}: cotrain label needs the name of a label table, such as labels.csv")
    table = settings.pop("data.labels_file", None)
    asked = Asked(
        folder=folder,
        labels=_table(folder, table) if table is not None else None,
        order=order,
        host=host,
        port=port,
        out=out,
        follow_links=follow_links,
        config=options.config,
        preset=options.preset,
        settings=settings,
        memory=options.memory,
    )
    serve(asked, console, browser=not no_browser)
    sys.stdout.flush()
    os._exit(0)  # a training that still runs is not worth waiting for


def _table(folder: Path, named: str) -> Path:
    """The table here or in the image folder, as `cotrain fit` finds it; or a new one here."""
    inside = folder / named
    return inside if inside.is_file() and not Path(named).is_file() else Path(named)
