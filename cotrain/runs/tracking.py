"""Copy the lines of log.jsonl and the figures of a finished run to an experiment tracker."""

import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cotrain.types import UserError

BOARD = "tensorboard"
FIGURES = ".figures"  # suffix of the event file that holds the figures


@dataclass(frozen=True)
class Shot:
    """A picture with its caption."""

    png: bytes
    caption: str


class TensorBoard:
    """Writes scalars to the run's folder `tensorboard`. Hides what a killed run logged after its last checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer = _summary_writer()(str(folder / BOARD), purge_step=step + 1)

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


def has_figures(folder: Path) -> bool:
    return any((folder / BOARD).glob(f"*{FIGURES}"))


def write_figures(folder: Path, step: int, shots: Mapping[str, Shot]) -> None:
    """Write all figures to one event file, which is either complete or absent."""
    board = folder / BOARD
    board.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".figures-", dir=folder) as partial:
        writer = _summary_writer()(partial, filename_suffix=FIGURES)
        for tag, shot in shots.items():
            pixels = np.asarray(Image.open(io.BytesIO(shot.png)).convert("RGB"))
            writer.add_image(tag, pixels, step, dataformats="HWC")
            writer.add_text(tag, shot.caption.encode(errors="backslashreplace").decode(), step)
        writer.close()
        for path in Path(partial).iterdir():
            path.replace(board / path.name)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "--track tensorboard needs the package tensorboard: pip install 'cotrain[tensorboard]', or omit --track"
        ) from error
    return SummaryWriter
