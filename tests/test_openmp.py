"""OpenMP threads sleep soon, unless the user or an earlier import of torch decided otherwise. Weights stay the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cotrain import Dataset
from cotrain.openmp import SPINS, bound_spinning, left_to_cotrain

CLEAN = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
SHORT = (
    "--labels 20 --steps 2 --optim.labelled 8 --optim.unlabelled 16 --model.backbone wrn-10-1 "
    "--run.report false --no-baseline"
)


def test_spins_are_bounded_when_nobody_decided() -> None:
    environment = {"PATH": "/bin"}
    bound_spinning(environment, modules=["os", "numpy"])
    assert environment == {"PATH": "/bin", "GOMP_SPINCOUNT": SPINS}
    assert left_to_cotrain(environment), "also in a process that this one starts"


@pytest.mark.parametrize("name, value", [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "ACTIVE")])
def test_what_the_user_set_stays(name: str, value: str) -> None:
    environment = {name: value}
    bound_spinning(environment, modules=[])
    assert environment == {name: value}
    assert not left_to_cotrain(environment)


def test_nothing_is_set_too_late() -> None:
    environment: dict[str, str] = {}
    bound_spinning(environment, modules=["torch"])
    assert environment == {}


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP runtime here")
def test_training_gets_the_setting_which_changes_no_weight(tmp_path: Path, toy: Dataset) -> None:
    np.savez(tmp_path / "toy.npz", train_images=toy.images.numpy(), train_labels=toy.labels.numpy())
    fit = ["-m", "cotrain", "fit", str(tmp_path / "toy.npz"), *SHORT.split()]
    default, none = tmp_path / "default", tmp_path / "none"
    assert spins_reported_by(*fit, "--out", str(default)) == int(SPINS)
    assert spins_reported_by(*fit, "--out", str(none), GOMP_SPINCOUNT="0") == 0
    assert (default / "model.safetensors").read_bytes() == (none / "model.safetensors").read_bytes()


def spins_reported_by(*command: str, **settings: str) -> int:
    """Run Python with two threads. torch's OpenMP runtime reports its settings when it is loaded."""
    environment = CLEAN | settings | {"OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    reported = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert reported is not None
    return int(reported[1])
