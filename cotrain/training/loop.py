"""The training loop, all of it: sample -> views -> loss -> backward -> step -> average -> log."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from cotrain.config import Config
from cotrain.data import BankSource, BatchSource, Dataset, FeatureSource, Source, Split
from cotrain.device import pick_precision
from cotrain.evaluation.head_stats import warnings_of_log
from cotrain.evaluation.outputs import Looking
from cotrain.model import MultiHead
from cotrain.networks import pixel_statistics
from cotrain.progress import say
from cotrain.runs.interrupt import Interrupted, stop_requests
from cotrain.runs.log import Log, StepProgress, Window, read_log
from cotrain.runs.run import Run
from cotrain.runs.tracking import tracker
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.distributed import ALONE, Ranks
from cotrain.training.monitor import evaluations
from cotrain.training.optim import learning_rate, set_learning_rate
from cotrain.training.selection import selection_of
from cotrain.training.spinning import sleeping_when_busy
from cotrain.training.state import State, begin, pool_of, restore, save, write_model
from cotrain.types import Batch, Learner, Losses, Pool


class Objective(nn.Module):
    """The method's loss as a module, which several ranks compute in parallel.

    It may call the network several times; there is one backward pass.
    """

    def __init__(self, config: Config, state: State, device: torch.device, ranks: Ranks) -> None:
        super().__init__()
        self.net, self.method, self.steps, self.ranks = state.net, config.method, config.optim.steps, ranks
        self.teacher = state.average.net  # all ranks have rank 0's batch-norm statistics, as in a checkpoint
        self.autocast = autocast(config, device)
        self.random = any(isinstance(module, nn.Dropout) and module.p > 0 for module in state.net.modules())
        self.as_seen = ranks.divide(state.net), ranks.divide(state.average.net), state.memory

    def forward(self, batch: Batch, step: int, generator: torch.Generator) -> tuple[Tensor, Losses]:
        net, teacher, memory = self.as_seen
        learner = Learner(net, teacher, step, self.steps, generator, memory)
        randomness = seeded(generator, self.ranks) if self.random else nullcontext()
        with randomness, self.autocast:
            losses = self.method.loss(learner, batch)
        if tuple(losses.terms) != self.method.terms:
            raise TypeError(f"{self.method.name}.loss gave the terms {tuple(losses.terms)}, not {self.method.terms}")
        return losses.total, losses


@contextmanager
def seeded(generator: torch.Generator, ranks: Ranks) -> Iterator[None]:
    """Seed torch's global generators, which dropout uses: by step, and differently on each rank."""
    with torch.random.fork_rng([generator.device] if generator.device.type == "cuda" else []):
        torch.manual_seed(generator.initial_seed() + ranks.rank)
        yield


def source_of(
    config: Config,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    ranks: Ranks = ALONE,
    kind: type[Source] = Source,
    weights: NDArray[np.float64] | None = None,
) -> BatchSource:
    """The batches: views of pixels, of the features of a bank if the dataset has one, or of the rows of a table."""
    sizes = {"labelled": config.optim.labelled, "unlabelled": config.unlabelled, "seed": config.run.seed}
    views, balanced = config.method.views, config.robust.balances
    if dataset.bank is not None:
        return BankSource(dataset, split, views, device=device, balanced=balanced, weights=weights, **sizes)
    if dataset.features is not None:
        return FeatureSource(
            dataset, split, config.features, views, device=device, balanced=balanced, weights=weights, **sizes
        )
    return kind(
        dataset,
        split,
        config.augment,
        views,
        device=device,
        balanced=balanced,
        weights=weights,
        part=(ranks.rank, ranks.size),
        statistics=pixel_statistics(config, len(dataset.classes), dataset.shape[-1]),
        **sizes,
    )


def objective_of(config: Config, state: State, device: torch.device, ranks: Ranks = ALONE) -> nn.Module:
    """The loss to call at every step, compiled and parallelised according to the settings."""
    if synchronised(config, device, ranks):
        nn.SyncBatchNorm.convert_sync_batchnorm(state.net)
    if config.run.compile:
        state.net.compile()
    return ranks.parallel(Objective(config, state, device, ranks), device)


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """Autocast in the configured precision.

    Its cache is off: some versions of torch reuse the cast weights of a pass without gradient in a pass that needs one.
    """
    precision = pick_precision(config.run.precision, device)
    return torch.autocast(device.type, precision, enabled=precision != torch.float32, cache_enabled=False)


def take_step(
    config: Config, state: State, objective: nn.Module, batch: Batch, generator: torch.Generator
) -> tuple[float, Losses]:
    """Loss, backward, optimiser, average. Returns the learning rate and the losses.

    Nothing here waits for a GPU, except the scaler of float16, which checks whether the gradients are finite.
    """
    loss, losses = objective(batch, state.step, generator)
    state.optimizer.zero_grad()
    state.scaler.scale(loss).backward()
    decays = config.optim.kind == "sgd"
    lr = learning_rate(config.optim.lr, state.step, config.optim.steps) if decays else config.optim.lr
    set_learning_rate(state.optimizer, lr)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.average.update(state.net, state.step)
    state.step += 1
    return lr, losses


def refresh(config: Config, state: State, pool: Pool, source: BatchSource, ranks: Ranks = ALONE) -> None:
    """Update the method's memory, once per pass or round. Rank 0 does it for all ranks."""
    generator = source.generator(state.step)
    learner = Learner(state.net, state.average.net, state.step, config.optim.steps, generator, state.memory)
    later = (step for step in config.method.refresh_steps(pool, learner.steps, config.unlabelled) if step > state.step)
    until = min(later, default=learner.steps)
    look = Looking(state.net, source.inputs, lambda: source.unlabelled_of(state.step, until))

    def refreshed() -> dict[str, Tensor]:
        with seeded(generator, ranks):
            config.method.refresh(learner, pool, look)
        return {name: tensor.cpu() for name, tensor in state.memory.items()}

    for name, tensor in ranks.from_first(refreshed).items():
        state.memory[name].copy_(tensor)


@sleeping_when_busy()
def train(
    run: Run,
    dataset: Dataset,
    device: torch.device,
    console: Console,
    title: str,
    ranks: Ranks = ALONE,
    then: float = 0.0,
    weights: Mapping[str, Tensor] | None = None,
) -> State:
    """Train to the last step, from the newest checkpoint if there is one, and write model.safetensors.

    `then` is how many seconds later work will take; the progress display adds it to the time left. `weights` are those
    to start from; without them they are random.
    """
    config, optim = run.config, run.config.optim
    keep_freed_memory()
    used = ranks.from_first(lambda: selection_of(config, dataset, run.split).used)
    split = used.split
    state = begin(config, dataset, split, device, weights)
    if saved := ranks.from_first(run.checkpoints.load):
        for note in restore(state, run, *saved, ranks):
            say(console, note)
    source = source_of(config, dataset, split, device, ranks, weights=used.weights)
    pool, objective = pool_of(dataset, *used), objective_of(config, state, device, ranks)
    refresh_steps = frozenset(config.method.refresh_steps(pool, optim.steps, config.unlabelled))
    window, earlier, began = Window(), state.seconds, time.monotonic()
    with (
        Log(
            run.log_path if ranks.first else None,
            state.step,
            tracker(config.run.track if ranks.first else "none", run.folder, state.step),
        ) as log,
        StepProgress(console, title, state.step, optim.steps, config.method.terms, then) as progress,
        ranks.together(lambda: _job_broken(run, state, ranks)),
        stop_requests() as stop,
    ):
        for batch in source.batches(state.step, optim.steps, config.method.rates(state.memory)):
            if state.step in refresh_steps:
                refresh(config, state, pool, source, ranks)
            lr, losses = take_step(config, state, objective, batch, source.generator(state.step))
            state.seconds = earlier + time.monotonic() - began
            window.add(losses.logged)

            stopping = ranks.any(stop.asked)
            last = state.step == optim.steps
            saving = last or stopping or state.step % config.run.checkpoint_every == 0
            row = None
            if saving or state.step % config.run.log_every == 0:
                row = window.read()
                if not all(map(math.isfinite, row.values())):
                    raise ranks.error(_diverged(run, state.step))
                log.write({"step": state.step, "seconds": state.seconds, "lr": lr, **row})
            progress.advance(state.step, row)
            evaluating_since = time.monotonic()
            if ranks.first:
                for measurements in evaluations(run, dataset, state.step, state.average.net, source):
                    log.write({"step": state.step, **measurements})
                halfway = read_log(run.log_path) if state.step == optim.steps // 2 else []
                for warning in warnings_of_log(halfway, dataset.unit):
                    say(console, f"{title}, halfway: {warning}")
            began += time.monotonic() - evaluating_since  # not training time
            if ranks.first and saving:
                save(state, run, ranks)
            if stopping:
                raise Interrupted(f"stopped at step {state.step} of {optim.steps}; everything is saved")
    if ranks.first:
        write_model(state.average.net, run, dataset, source.inputs)
    return state


@sleeping_when_busy()
def trained_net(config: Config, dataset: Dataset, split: Split, device: torch.device) -> MultiHead:
    """Train without a run folder, in seconds, and return the averaged network: for cross-validation on features."""
    keep_freed_memory()
    used = selection_of(config, dataset, split).used
    state = begin(config, dataset, used.split, device)
    source = source_of(config, dataset, used.split, device, weights=used.weights)
    pool, objective = pool_of(dataset, *used), objective_of(config, state, device)
    refresh_steps = frozenset(config.method.refresh_steps(pool, config.optim.steps, config.unlabelled))
    for batch in source.batches(0, config.optim.steps, config.method.rates(state.memory)):
        if state.step in refresh_steps:
            refresh(config, state, pool, source)
        take_step(config, state, objective, batch, source.generator(state.step))
    return state.average.net


def synchronised(config: Config, device: torch.device, ranks: Ranks) -> bool:
    """Whether batch-norm uses the statistics of the whole batch rather than of each rank's part."""
    return ranks.size > 1 and device.type == "cuda" and config.run.batchnorm != "local"


def _diverged(run: Run, step: int) -> str:
    newest = run.checkpoints.newest()
    kept = f"the last checkpoint before that is {newest}" if newest else "there is no checkpoint yet"
    return f"the loss is NaN or infinite at step {step}; {kept}; try a new run with a lower optim.lr"


def _job_broken(run: Run, state: State, ranks: Ranks) -> str:
    newest = run.checkpoints.newest()
    if newest is not None:
        kept = f"the newest checkpoint is {newest}; "
    else:  # another rank may be on a machine that does not see the run folder
        kept = "there is no checkpoint yet; " if ranks.first else ""
    return f"another process of this job has ended, at step {state.step}; {kept}start the job again with --resume"
