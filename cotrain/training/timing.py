"""How long training will take, from a few trial steps."""

import statistics
import time
from dataclasses import dataclass

from cotrain.config import Config
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.experiment import Experiment
from cotrain.training.spinning import sleeping_when_busy
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
def pace(experiment: Experiment, patience: float = 0.0) -> Pace:
    """Measure trial steps at several places of the training, because methods have phases. The trials change nothing.

    Each place has two or more trial steps and a third of `patience` seconds. The first step is a warm-up and
    does not count, unless it takes so long that there is no second.
    """
    keep_freed_memory()
    training, config = experiment.start(), experiment.config
    state, source = training.state, training.source
    source.batch(0, config.method.rates(state.memory))  # compiles the kernels on their very first use
    step_times, refresh_times = [], []
    for place in TRIED_AT if training.refresh_steps else (0.5,):
        state.step = int(place * config.optim.steps)
        began = last = time.monotonic()
        if training.refresh_steps:
            training.refresh()
            last = time.monotonic()
        refresh_times.append(last - began)
        seconds: list[float] = []
        for batch in training.batches(state.step + MOST_TRIALS):
            _, losses = training.update(batch)
            losses.total.item()  # waits for a GPU
            seconds.append(time.monotonic() - last)
            last += seconds[-1]
            enough = len(seconds) > 1 and sum(seconds) > patience / len(TRIED_AT)
            if experiment.ranks.any(enough or seconds[0] > LONG_STEP):
                break
        step_times.append(statistics.median(seconds[1:] or seconds))
    return Pace(statistics.mean(step_times), statistics.mean(refresh_times))
