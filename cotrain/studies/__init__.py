"""The paper's studies, one file each: they train or measure, and set a table and a figure beside its numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cotrain.comparison.table import Table
from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.registry import Registry
from cotrain.studies.base import Asked, Scale, Study

STUDIES = Registry("study", Study, __name__)  # type: ignore[type-abstract]


def study(
    which: str,
    data: str | Path | Dataset | None = None,
    *,
    scale: Scale = "minutes",
    out: str | Path | None = None,
    seeds: int | None = None,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str = "paper",
    memory: float | None = None,
    console: Console | None = None,
) -> Table:
    """Do one of the paper's studies in the folder `out`; what is done there stays.

    Without `data` it is of the digits in minutes, and of the paper's data at other scales. The rest is as in `compare`.
    """
    console = console or Console(quiet=True)
    asked = Asked(data, scale, out, seeds, config, settings or {}, preset, memory, console)
    return STUDIES.named(which)().run(asked).table
