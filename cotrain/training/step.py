"""One step of training: loss -> backward -> optimiser -> average, after a refresh of the method's memory if one is due.

Everything that trains goes through `Training.step`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from cotrain.config import Config
from cotrain.data import BatchSource
from cotrain.device import pick_precision
from cotrain.evaluation.outputs import Looking
from cotrain.graph import Graphs
from cotrain.training.distributed import Ranks
from cotrain.training.optim import learning_rate, set_learning_rate
from cotrain.training.state import State
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


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """Autocast in the configured precision.

    Its cache is off: some versions of torch reuse the cast weights of a pass without gradient in a pass that needs one.
    """
    precision = pick_precision(config.run.precision, device)
    return torch.autocast(device.type, precision, enabled=precision != torch.float32, cache_enabled=False)


def synchronised(config: Config, device: torch.device, ranks: Ranks) -> bool:
    """Whether batch-norm uses the statistics of the whole batch rather than of each rank's part."""
    return ranks.size > 1 and device.type == "cuda" and config.run.batchnorm != "local"


@dataclass(frozen=True)
class Training:
    """A state, and what its next steps need."""

    config: Config
    state: State
    source: BatchSource
    pool: Pool
    ranks: Ranks
    graphs: Graphs  # of features that do not change

    @cached_property
    def objective(self) -> nn.Module:
        """The loss, compiled and parallelised according to the settings. Made after the state is restored."""
        config, state, device = self.config, self.state, self.source.device
        if synchronised(config, device, self.ranks):
            nn.SyncBatchNorm.convert_sync_batchnorm(state.net)
        if config.run.compile:
            state.net.compile()
        return self.ranks.parallel(Objective(config, state, device, self.ranks), device)

    @cached_property
    def refresh_steps(self) -> frozenset[int]:
        method, optim = self.config.method, self.config.optim
        return frozenset(method.refresh_steps(self.pool, optim.steps, self.config.unlabelled))

    def batches(self, end: int | None = None) -> Iterator[Batch]:
        """The batches of the steps from the present one to the last, or to `end`."""
        end = self.config.optim.steps if end is None else end
        return self.source.batches(self.state.step, end, self.config.method.rates(self.state.memory))

    def step(self, batch: Batch) -> tuple[float, Losses]:
        """Take the state one step further. Returns the learning rate and the losses."""
        if self.state.step in self.refresh_steps:
            self.refresh()
        return self.update(batch)

    def update(self, batch: Batch) -> tuple[float, Losses]:
        """Loss, backward, optimiser, average.

        Nothing here waits for a GPU, except the scaler of float16, which checks whether the gradients are finite.
        """
        config, state = self.config, self.state
        loss, losses = self.objective(batch, state.step, self.source.generator(state.step))
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

    def refresh(self) -> None:
        """Update the method's memory, once per pass or round. Rank 0 does it for all ranks."""
        config, state, source = self.config, self.state, self.source
        generator = source.generator(state.step)
        learner = Learner(state.net, state.average.net, state.step, config.optim.steps, generator, state.memory)
        until = min((step for step in self.refresh_steps if step > state.step), default=learner.steps)
        look = Looking(state.net, source.inputs, lambda: source.unlabelled_of(state.step, until), self.graphs)

        def refreshed() -> dict[str, Tensor]:
            with seeded(generator, self.ranks):
                config.method.refresh(learner, self.pool, look)
            return {name: tensor.cpu() for name, tensor in state.memory.items()}

        for name, tensor in self.ranks.from_first(refreshed).items():
            state.memory[name].copy_(tensor)
