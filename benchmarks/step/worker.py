"""A process that repeats what a training step is compared with: `race` starts it."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.step.bare import Bare
from benchmarks.step.pillow import normalised_by_pillow, recipes
from benchmarks.step.released import released_steps
from cotrain.augment import draw_strong, draw_weak, normalised
from cotrain.comparison.step_worker import WORK as STEP
from cotrain.comparison.step_worker import Task, Work, drawn, made_up_images, main, training_steps
from cotrain.config import Config
from cotrain.device import pick_device
from cotrain.training.step import autocast

PROGRAM = "benchmarks.step.worker"


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


WORK: Mapping[str, Callable[[Task, Config], Work]] = {
    **STEP,
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
    main(WORK)
