"""Runs on a bank in processes of their own."""

from pathlib import Path
from signal import SIGKILL

import torch

import cotrain
from tests.processes import Signal, send_after_steps
from tests.trunk.tiny import CONFIG, known, small_data

DOUBTED = CONFIG.changed({"robust.trust_labels": 0.4})
DROPOUT = DOUBTED.changed({"model.dropout": 0.3, "optim.steps": 10})


def fit_killed(out: Path, steps: int) -> None:
    """A run that is killed after so many steps."""
    torch.set_num_threads(1)
    send_after_steps(Signal(SIGKILL, steps))
    with known():
        cotrain.fit(small_data(), out=out, config=DROPOUT)


def fit_one_rank(out: Path) -> None:
    torch.set_num_threads(1)
    with known():
        cotrain.fit(small_data(), out=out, config=DOUBTED)
