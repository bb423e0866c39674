"""The paper's studies: each trains or measures, and leaves a table and a figure beside the paper's numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cotrain.comparison.table import Table
from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.studies.ablation import AblationStudy
from cotrain.studies.calibration import CalibrationStudy
from cotrain.studies.case import Study
from cotrain.studies.cost import EFFORTS, Cost
from cotrain.studies.heads import HeadsStudy
from cotrain.studies.structure import StructureStudy
from cotrain.studies.training import Scale, Training
from cotrain.types import UserError

STUDIES: dict[str, Study] = {
    each.name: each for each in (AblationStudy(), HeadsStudy(), StructureStudy(), CalibrationStudy())
}


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
    if which == "cost":
        if not (data is seeds is config is memory is None):
            raise UserError("study cost measures steps of made-up images: it takes no data, seeds, memory or recipe")
        folder = Path(out or Path("runs") / f"study-cost-{scale}")
        return Cost(folder, EFFORTS[scale], preset, settings or {}).run(console).table
    if which not in STUDIES:
        raise UserError(f"there is no study {which!r}; there are: {', '.join([*STUDIES, 'cost'])}")
    training = Training.of(
        STUDIES[which],
        data,
        scale,
        out=out,
        seeds=seeds,
        config=config,
        settings=settings,
        preset=preset,
        memory=memory,
        console=console,
    )
    return training.run(console).table
