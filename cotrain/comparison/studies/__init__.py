"""The paper's studies, one file each: they train or measure, and show a table and a figure next to its numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cotrain.comparison.results_table import Table
from cotrain.comparison.study import Scale, Study, StudyOptions
from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.registry import Registry

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
    """Run one of the paper's studies in the folder `out`. Runs that are already finished there are kept.

    Without `data` the study uses the digits at the scale "minutes", and the paper's data at the other scales. The other
    arguments are as in `compare`.
    """
    console = console or Console(quiet=True)
    options = StudyOptions(data, scale, out, seeds, config, settings or {}, preset, memory, console)
    return STUDIES.named(which)().run(options).table
