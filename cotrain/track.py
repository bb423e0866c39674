"""The lines of log.jsonl for those who watch runs elsewhere too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotrain.types import UserError


class TensorBoard:
    """Scalars by step in the folder `tensorboard` of a run. What a killed run wrote beyond its checkpoint is hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer = _summary_writer()(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, row: Mapping[str, float]) -> None:
        step = int(row["step"])
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


def check_tracker(kind: str) -> None:
    if kind == "tensorboard":
        _summary_writer()


def tracker(kind: str, folder: Path, step: int) -> TensorBoard | None:
    return TensorBoard(folder, step) if kind == "tensorboard" else None


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "--track tensorboard needs the package tensorboard: pip install 'cotrain[tensorboard]', or leave it out"
        ) from error
    return SummaryWriter
