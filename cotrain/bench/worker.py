"""A process that repeats training steps, or what they are compared with, and reports how long they took.

    python -m cotrain.bench.worker

The first line of its input is a `Task`; the worker answers when everything is built. Each further line is a number of
repetitions. It is a separate process because some settings apply to a whole process, and to measure its own memory.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cotrain.augment import draw_strong, draw_weak, normalised
from cotrain.bench.bare import Bare
from cotrain.bench.pillow import normalised_by_pillow, recipes
from cotrain.bench.released import released_steps
from cotrain.config import Config
from cotrain.data import Dataset, draw_split, from_arrays
from cotrain.data.imagefacts import Facts
from cotrain.data.imagefile import ImageFile
from cotrain.device import pick_device
from cotrain.runs.log import Window
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.experiment import Experiment
from cotrain.training.spinning import sleeping_when_busy
from cotrain.training.step import autocast
from cotrain.types import UserError

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


def main() -> None:
    task = Task(**json.loads(sys.stdin.readline()))
    try:
        torch.set_num_threads(task.threads)
        if task.keep_memory:
            keep_freed_memory()
        work = WORK[task.what](task, Config.parse(task.config).changed({"optim.steps": ENDLESS}))
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


Work = Callable[[int], dict[str, float]]  # repeats the task so many times and returns facts about the last time


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


def released(task: Task, config: Config) -> Work:
    return released_steps(drawn(task, config))


def bare(task: Task, config: Config) -> Work:
    """Only the convolutions and batch-norms of the step."""
    training = drawn(task, config).start()
    device = training.source.device
    recorded = Bare.record(
        training.state.net, lambda: training.update(training.source.batch(0)), autocast(config, device)
    )

    def work(steps: int) -> dict[str, float]:
        for _ in range(steps):
            recorded.run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return {"gflop": recorded.gflop}

    return work


def profiled(task: Task, config: Config) -> Work:
    """Training steps, and the fraction of their time spent in convolutions and in batch-norm."""
    steps_of, on_gpu = training_steps(task, config), pick_device(config.run.device).type == "cuda"

    def work(steps: int) -> dict[str, float]:
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as recorded:
            steps_of(steps)
        times = {
            event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total
            for event in recorded.key_averages()
        }

        def share(of: str) -> float:
            return sum(time for key, time in times.items() if of in key) / sum(times.values())

        return {"convolutions": share("convolution"), "batch_norm": share("batch_norm")}

    return work


def views(task: Task, config: Config, kind: str, by: str) -> Work:
    """One batch of views on one thread; `task.images` is the batch size."""
    torch.set_num_threads(1)
    height, width, channels = task.shape
    images = torch.from_numpy(made_up_images(task.images, height, width, channels))
    rows, draw = np.arange(task.images), draw_strong if kind == "strong" else draw_weak
    mean, std = [0.5] * channels, [0.25] * channels

    def ours() -> Tensor:
        decided = draw(config.augment, task.images, height, width, np.random.default_rng(0))
        return normalised(images, rows, decided, config.augment, mean, std)

    known = recipes(draw(config.augment, task.images, height, width, np.random.default_rng(0)))
    by_pillow = partial(normalised_by_pillow, images, rows, known, config.augment, mean, std)

    def work(times: int) -> dict[str, float]:
        for _ in range(times):
            made = ours() if by == "kernel" else by_pillow()
        return {"mean": made.mean().item()}

    return work


WORK: dict[str, Callable[[Task, Config], Work]] = {
    "step": training_steps,
    "released": released,
    "bare": bare,
    "profile": profiled,
    **{
        f"{kind} views, {by}": partial(views, kind=kind, by=by)
        for kind in ("strong", "weak")
        for by in ("kernel", "Pillow")
    },
}

if __name__ == "__main__":
    main()
