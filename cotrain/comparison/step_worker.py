"""A process that repeats training steps and reports how long they took: `race` starts it.

The first line of its input is a `Task`; the worker answers when everything is built. Each further line is a number of
repetitions. It is a separate process because some settings apply to a whole process, and to measure its own memory.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from cotrain.config import Config
from cotrain.data import Dataset, draw_split, from_arrays
from cotrain.data.imagefacts import Facts
from cotrain.data.imagefile import ImageFile
from cotrain.device import pick_device
from cotrain.model.trust import Trust
from cotrain.runs.log import Window
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.experiment import Experiment
from cotrain.training.spinning import sleeping_when_busy
from cotrain.types import UserError

Work = Callable[[int], dict[str, float]]  # repeats the task so many times and returns facts about the last time
ENDLESS = 10**9  # steps: more than any benchmark takes


@dataclass(frozen=True)
class Task:
    config: dict[str, Any]
    what: str = "step"  # a key of WORK
    shape: tuple[int, int, int] = (32, 32, 3)
    classes: int = 10
    images: int = 10_000
    file: str | None = None  # read the images from this ImageFile instead of making them up
    keep_memory: bool = True
    spins: str | None = None  # GOMP_SPINCOUNT of the process; None: cotrain's default
    beside: int = 0  # number of busy processes that run at the same time
    threads: int = field(default_factory=torch.get_num_threads)


@dataclass(frozen=True)
class Answer:
    seconds: float
    memory: float  # GB, peak so far
    facts: dict[str, float]


def main(work_of: Mapping[str, Callable[[Task, Config], Work]]) -> None:
    task = Task(**json.loads(sys.stdin.readline()))
    try:
        torch.set_num_threads(task.threads)
        if task.keep_memory:
            keep_freed_memory()
        config = Config.parse(task.config).with_trust(Trust.USER)  # who named the network in the process that asks
        work = work_of[task.what](task, config.changed({"optim.steps": ENDLESS}))
    except (UserError, RuntimeError, MemoryError) as error:
        print(json.dumps({"error": str(error).partition("\n")[0]}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    with sleeping_when_busy():
        for line in sys.stdin:
            began = time.perf_counter()
            facts = work(int(line))
            print(json.dumps(asdict(Answer(time.perf_counter() - began, peak_memory(), facts))), flush=True)


def peak_memory() -> float:
    """In GB: of the GPU if there is one, otherwise of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 1e9
    import resource  # Windows has none

    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def made_up(task: Task) -> Dataset:
    """Smooth patches with a little noise: neighbouring pixels are similar, as in photographs."""
    height, width, channels = task.shape
    labels = np.arange(task.images) % task.classes
    if task.file is not None:
        images = ImageFile(Path(task.file), Facts((task.images, *task.shape)))
        rows = np.arange(len(images))
        names = tuple(map(str, range(task.classes)))
        none = rows[:0]
        return Dataset("made up", images, rows.astype(np.uint64), torch.from_numpy(labels), names, rows, none, none)
    return from_arrays(made_up_images(task.images, height, width, channels), labels, name="made up")


def made_up_images(number: int, height: int, width: int, channels: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    patches = rng.integers(20, 236, (number, height // 4 + 1, width // 4 + 1, channels), dtype=np.uint8)
    images = patches.repeat(4, axis=1).repeat(4, axis=2)[:, :height, :width]
    return images + rng.integers(0, 17, images.shape, dtype=np.uint8) - np.uint8(8)


def drawn(task: Task, config: Config) -> Experiment:
    dataset = made_up(task)
    labels = min(1000, len(dataset.images) // 2) // task.classes * task.classes
    settings = config.data.model_copy(update={"labels": labels, "test_share": 0.0, "valid_share": 0.0})
    return Experiment(config, dataset, draw_split(dataset, settings, 0), pick_device(config.run.device))


def training_steps(task: Task, config: Config) -> Work:
    """The training loop, without writing files."""
    training, window = drawn(task, config).start(), Window()
    batches = training.batches()

    def work(steps: int) -> dict[str, float]:
        for _ in range(steps):
            _, losses = training.update(next(batches))
            window.add(losses.logged)
        return window.read()

    return work


WORK: Mapping[str, Callable[[Task, Config], Work]] = {"step": training_steps}

if __name__ == "__main__":
    main(WORK)
