"""The training loop, all of it: sample -> views -> loss -> backward -> step -> average -> log."""

import math
import time
from collections.abc import Mapping

from rich.console import Console
from torch import Tensor

from cotrain.evaluation.head_stats import warnings_of_log
from cotrain.model import MultiHead
from cotrain.progress import say
from cotrain.runs.interrupt import Interrupted, stop_requests
from cotrain.runs.log import Log, StepProgress, Window, read_log
from cotrain.runs.run import Run
from cotrain.runs.tracking import tracker
from cotrain.training.allocator import keep_freed_memory
from cotrain.training.distributed import Ranks
from cotrain.training.experiment import Experiment
from cotrain.training.monitor import evaluations
from cotrain.training.spinning import sleeping_when_busy
from cotrain.training.state import State, restore, save, write_model


@sleeping_when_busy()
def train(
    run: Run,
    experiment: Experiment,
    console: Console,
    title: str,
    then: float = 0.0,
    weights: Mapping[str, Tensor] | None = None,
) -> State:
    """Train to the last step, from the newest checkpoint if there is one, and write model.safetensors.

    `then` is how many seconds later work will take; the progress display adds it to the time left. `weights` are those
    to start from; without them they are random.
    """
    config, optim, dataset, ranks = run.config, run.config.optim, experiment.dataset, experiment.ranks
    keep_freed_memory()
    training = experiment.start(weights)
    state, source = training.state, training.source
    if saved := ranks.from_first(run.checkpoints.load):
        for note in restore(state, run, *saved, ranks):
            say(console, note)
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
        for batch in training.batches():
            lr, losses = training.step(batch)
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
def trained_net(experiment: Experiment) -> MultiHead:
    """Train without a run folder, in seconds, and return the averaged network: for cross-validation on features."""
    keep_freed_memory()
    training = experiment.start()
    for batch in training.batches():
        training.step(batch)
    return training.state.average.net


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
