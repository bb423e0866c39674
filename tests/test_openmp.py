"""In a fresh process, OpenMP threads sleep soon unless the user decided otherwise, and nothing is imported in vain."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cotrain.openmp import SPINS, bound_spinning, left_to_cotrain

CLEAN = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
TRAIN = """
import cotrain
import sys
import numpy as np
import torch
from safetensors.torch import save_model
from cotrain.data import draw_split
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net

assert torch.get_num_threads() == 2
noise = cotrain.from_arrays(np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8), np.arange(40) % 2)
few = {"data.labels": 8, "optim.steps": 2, "optim.labelled": 8, "optim.unlabelled": 16}
config = cotrain.recipe_named("digits").changed(few)
save_model(trained_net(Experiment(config, noise, draw_split(noise, config.data, 0), torch.device("cpu"))), sys.argv[1])
print(*sys.modules)
"""


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


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> "tuple[bytes, subprocess.CompletedProcess[str]]":
    """The weights that a process trains without any setting, and what it says."""
    return trained(tmp_path_factory.mktemp("default"))


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP runtime here")
def test_training_gets_the_setting_which_changes_no_weight(default, tmp_path: Path) -> None:
    weights, done = default
    assert reported_spins(done) == int(SPINS)
    weights_without, done_without = trained(tmp_path, GOMP_SPINCOUNT="0")
    assert reported_spins(done_without) == 0
    assert weights == weights_without


@pytest.mark.system
def test_training_does_not_wait_for_imports_that_it_does_not_need(default) -> None:
    imported = default[1].stdout.split()
    assert "cotrain.training.loop" in imported
    assert not {"torch._dynamo", "scipy.stats", "sklearn", "matplotlib", "onnx"} & {*imported}


def trained(folder: Path, **settings: str) -> "tuple[bytes, subprocess.CompletedProcess[str]]":
    """Train with two threads in a new process. torch's OpenMP runtime reports its settings when it is loaded."""
    environment = CLEAN | settings | {"OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", TRAIN, str(folder / "weights")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return (folder / "weights").read_bytes(), done


def reported_spins(done: "subprocess.CompletedProcess[str]") -> int:
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert found is not None
    return int(found[1])
