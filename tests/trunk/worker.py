"""What processes of the tests do with banks: fill one slowly, to be killed at it or meet each other, or train on it."""

import os
import signal
import time
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from cotrain import UserError
from cotrain.cli.main import main
from cotrain.networks import build_trunk
from cotrain.storage.rows import INDEX, RECORD
from cotrain.trunk import building
from cotrain.trunk.runtime import Compute, compiled
from cotrain.trunk.store import Store
from cotrain.trunk.trunk import Trunk
from tests.trunk.tiny import CONFIG, known, small_data


def fill(
    home: Path,
    pause: float = 0.0,
    settings: dict[str, Any] | None = None,
    signalled: tuple[signal.Signals, int] | None = None,
    killed_after: int | None = None,
) -> None:
    """Fill a bank. Each call of the trunk takes a pause and leaves its number of views in a file of this process.

    The process signals itself after so many views, or kills itself when more than so many are saved: another one might
    get no core in time.
    """
    torch.set_num_threads(1)
    os.environ["COTRAIN_HOME"] = str(home)
    home.mkdir(exist_ok=True)
    for name, value in (settings or {}).items():
        setattr(building, name, value)

    pending, lock = [signalled] if signalled else [], Lock()

    def slowed(trunk: Trunk, kind: building.Kind) -> Compute:
        compute = compiled(trunk, kind)

        def computing(images: NDArray[np.uint8]) -> NDArray[np.float32]:
            with open(home / f"views-{os.getpid()}", "ab") as file:
                file.write(bytes(len(images)))
            with lock:
                if pending and sum(views(home)) > pending[0][1]:
                    os.kill(os.getpid(), pending.pop()[0])
            time.sleep(pause)
            return compute(images)

        return computing

    class Saving(Store):
        def save(self) -> None:
            super().save()
            if killed_after is not None and saved(home) > killed_after:
                os.kill(os.getpid(), signal.SIGKILL)

    building.compiled, building.Store = slowed, Saving
    with known():
        data = small_data(80, 6, 10)
        trunk = build_trunk(CONFIG, len(data.classes), data.shape)
        assert trunk is not None
        try:
            building.open_bank(data, trunk, CONFIG.augment, CONFIG.bank, Console(force_terminal=False), "torch")
        except UserError as error:
            raise SystemExit(str(error)) from error


def cotrain_on_tiny(words: list[str]) -> None:
    """A command that may name the backbone `tiny`."""
    with known():
        main(words)


def views(home: Path) -> list[int]:
    """How many each process computed."""
    return [path.stat().st_size for path in home.glob("views-*")]


def saved(home: Path) -> int:
    """The views that count."""
    paths = home.glob(f"banks/*/*{INDEX}")
    return sum(np.count_nonzero(np.fromfile(path, RECORD)["digest"]) for path in paths)
