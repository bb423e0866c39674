import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace

os.environ.pop("FORCE_COLOR", None)
os.environ.pop("NO_COLOR", None)
os.environ.pop("WORLD_SIZE", None)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COLUMNS"] = "100"
os.environ["COTRAIN_HOME"] = os.path.join(tempfile.gettempdir(), f"cotrain-test-{os.getpid()}")

import numpy as np
import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from cotrain import Config, Dataset, from_arrays, recipe_named
from cotrain.training.allocator import keep_freed_memory
from tests.tracing import untraced

torch.set_num_threads(1)
keep_freed_memory()  # as training does: large buffers are not requested from the kernel again and again
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

FIRST = "COTRAIN_TEST_TRUNKS" not in os.environ  # the process that starts the workers, or the only one
TRUNKS = Path(os.environ.setdefault("COTRAIN_TEST_TRUNKS", f"{os.environ['COTRAIN_HOME']}-trunks"))

# A worker gets one file after the other, and none should be left with a long one at the end: these come first.
LONGEST = (
    "methods/test_contract.py",
    "training/test_loop.py",
    "comparison/test_compare.py",
    "comparison/studies/test_studies.py",
    "augment/test_ops.py",
    "inference/test_streaming.py",
    "labelling/test_learning.py",
    "report/test_page.py",
    "report/test_tensorboard.py",
    "sklearn/test_estimator.py",
    "model/test_model.py",
    "report/test_browser.py",
    "report/test_page_numbers.py",
    "runs/test_damaged.py",
    "runs/test_scores.py",
    "labelling/test_server.py",
    "report/test_report_command.py",
    "cli/test_data_commands.py",
    "augment/test_pipelines.py",
    "fitting/test_api.py",
    "training/test_distributed.py",
    "labelling/test_label_browser.py",
    "model/test_huggingface.py",
    "extension/test_package.py",
    "comparison/studies/test_ablation.py",
)

# They start processes, and one worker runs them all, so that only one server of `processes.py` imports everything.
FORKING = ("runs/test_resume.py", "cli/test_cli.py", "training/test_on_features.py", "training/test_torchrun.py")


class OneServer(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "processes" if file.removeprefix("tests/") in FORKING else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneServer | None:
    """For the default tests. Nearly all others start processes."""
    return OneServer(config, log) if "not system" in config.getoption("markexpr") else None


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: now and then a test waits for a process or a browser."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate((*FORKING, *LONGEST))}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def home() -> Iterator[None]:
    """What the tests decode or fetch goes to a folder of their own. Compiled trunks are the same for all workers."""
    folder = Path(os.environ["COTRAIN_HOME"])
    folder.mkdir()
    TRUNKS.mkdir(exist_ok=True)
    with suppress(OSError):  # Windows lets few users make links
        (folder / "trunks").symlink_to(TRUNKS, target_is_directory=True)
    yield
    shutil.rmtree(folder, ignore_errors=True)


def pytest_unconfigure() -> None:
    if FIRST:
        shutil.rmtree(TRUNKS, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """The tests kill processes but do not cut the power, so files need not have reached the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def drawing_is_not_traced() -> Iterator[None]:
    """Figures take most of the time of a page, all of it in matplotlib."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", untraced(Figure.savefig))
        yield


@pytest.fixture(scope="session")
def toy() -> Dataset:
    """Two classes of 8x8 grey images that a small network separates at once: bright above, or bright below."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    images = rng.integers(0, 60, (120, 8, 8)).astype(np.uint8)
    images[labels == 0, :4] += 150
    images[labels == 1, 4:] += 150
    return from_arrays(
        images[:80], labels[:80], test=(images[80:], labels[80:]), classes=("above", "below"), name="toy"
    )


@pytest.fixture
def tiny() -> Config:
    """A few seconds of training."""
    return recipe_named("digits").changed(
        {
            "data.labels": 8,
            "optim.steps": 30,
            "optim.labelled": 8,
            "optim.unlabelled": 16,
            "run.log_every": 5,
            "run.checkpoint_every": 10,
            "run.baseline": False,
            "run.report": False,
        }
    )


@pytest.fixture(scope="session")
def quick_exports() -> Iterator[None]:
    """Exports to ONNX in half the time: torch's code is not traced, and makes its table of operators only once."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        patch.setattr(torch.onnx, "export", untraced(torch.onnx.export))
        yield


@pytest.fixture(scope="module")
def impatient() -> Iterator[None]:
    """Few trial steps, timed by the CPU seconds of this process: others may keep it waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cotrain.training.timing.time", SimpleNamespace(monotonic=time.process_time))
        patch.setattr("cotrain.comparison.budget.PATIENCE", 0.0)
        yield
