"""How long training will take, from a few trial steps."""

import statistics
import time
from dataclasses import dataclass

import torch

from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.distributed import ALONE, Ranks
from cotrain.training.loop import objective_of, refresh, source_of, take_step
from cotrain.training.spinning import sleeping_when_busy
from cotrain.training.state import begin, pool_of
from cotrain.types import Pool

TRIED_AT = (0.35, 0.5, 0.65)  # fractions of the steps
MOST_TRIALS = 50  # steps at each place
LONG_STEP = 10.0  # seconds; one such step is enough


@dataclass(frozen=True)
class Pace:
    """Seconds per step, and per `refresh` of the method."""

    step: float
    refresh: float

    def seconds(self, config: Config, pool: Pool) -> float:
        """The training time of a whole run."""
        steps = config.optim.steps
        return steps * self.step + len(config.method.refresh_steps(pool, steps, config.unlabelled)) * self.refresh


@sleeping_when_busy()
def pace(
    config: Config,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    ranks: Ranks = ALONE,
    patience: float = 0.0,
) -> Pace:
    """Measure trial steps at several places of the training, because methods have phases. The trials change nothing.

    Each place has two or more trial steps and a third of `patience` seconds. The first step is a warm-up and
    does not count, unless it takes so long that there is no second.
    """
    keep_freed_memory()
    state, source = begin(config, dataset, split, device), source_of(config, dataset, split, device, ranks)
    rates = config.method.rates(state.memory)
    source.batch(0, rates)  # compiles the kernels on their very first use
    objective, pool = objective_of(config, state, device, ranks), pool_of(dataset, split)
    refreshes = len(config.method.refresh_steps(pool, config.optim.steps, config.unlabelled)) > 0
    step_times, refresh_times = [], []
    for place in TRIED_AT if refreshes else (0.5,):
        state.step = int(place * config.optim.steps)
        began = last = time.monotonic()
        if refreshes:
            refresh(config, state, pool, source, ranks)
            last = time.monotonic()
        refresh_times.append(last - began)
        seconds: list[float] = []
        for batch in source.batches(state.step, state.step + MOST_TRIALS, rates):
            _, losses = take_step(config, state, objective, batch, source.generator(state.step))
            losses.total.item()  # waits for a GPU
            seconds.append(time.monotonic() - last)
            last += seconds[-1]
            enough = len(seconds) > 1 and sum(seconds) > patience / len(TRIED_AT)
            if ranks.any(enough or seconds[0] > LONG_STEP):
                break
        step_times.append(statistics.median(seconds[1:] or seconds))
    return Pace(statistics.mean(step_times), statistics.mean(refresh_times))
