"""The training loop, all of it: sample -> views -> loss -> finite? -> backward -> step -> average -> log."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from cotrain.allocator import keep_freed_memory
from cotrain.augment import draw_weak
from cotrain.checkpoint import momentum_of, prefixed, restore_momentum, unprefixed, write_tensors
from cotrain.config import Config, differences
from cotrain.data import Dataset, Source, Split
from cotrain.ema import Average
from cotrain.evaluate import head_logits, score
from cotrain.interrupt import Interrupted, stop_requests
from cotrain.log import Log, StepProgress, Window
from cotrain.model import MultiHead, backbone
from cotrain.optim import learning_rate, set_learning_rate, sgd
from cotrain.progress import say
from cotrain.run import Run
from cotrain.types import Learner, Pool, UserError


@dataclass
class State:
    """Everything that changes while training, and so everything a checkpoint holds."""

    net: MultiHead
    average: Average
    optimizer: torch.optim.SGD
    memory: dict[str, Tensor]
    step: int = 0
    seconds: float = 0.0


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()
        return torch.device(name)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"run.device={name!r} cannot be used here ({reason}); try cpu or auto") from error


def build_network(config: Config, classes: int, channels: int) -> MultiHead:
    """The configured network, initialised from the run's seed."""
    with torch.random.fork_rng():
        torch.manual_seed(config.run.seed)
        stages = backbone(
            config.model.backbone,
            channels=channels,
            classes=classes,
            last_width=config.model.last_width,
            bn_momentum=config.model.bn_momentum,
        )
        return MultiHead.cut(stages, config.method.heads, after=config.model.share, head_init=config.model.head_init)


def begin(config: Config, dataset: Dataset, split: Split, device: torch.device) -> State:
    net = build_network(config, len(dataset.classes), dataset.shape[-1])
    net = net.to(device).channels_last().train()
    optimizer = sgd(net, lr=config.optim.lr, momentum=config.optim.momentum, weight_decay=config.optim.weight_decay)
    labelled = torch.tensor(split.labelled)
    pool = Pool(
        labelled, dataset.labels[labelled], torch.tensor(split.unlabelled), len(dataset.images), len(dataset.classes)
    )
    memory = {name: tensor.to(device) for name, tensor in config.method.init(pool).items()}
    return State(net, Average(net, config.optim.ema, config.optim.ema_warmup), optimizer, memory)


def check_trainable(config: Config, dataset: Dataset) -> None:
    """Fail before anything is written where training could not begin: device, network or views."""
    height, width, channels = dataset.shape
    pick_device(config.run.device)
    draw_weak(config.augment, 1, height, width, np.random.default_rng(0))
    few = min(config.optim.labelled, config.optim.unlabelled, 2)
    try:
        net = build_network(config, len(dataset.classes), channels).train()
        net(torch.zeros(few, channels, height, width))
    except UserError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        size = f"{height}x{width} with {channels} channels"
        raise UserError(f"{config.model.backbone} cannot be trained on images of {size} ({reason})") from error


def train(run: Run, dataset: Dataset, device: torch.device, console: Console, title: str) -> State:
    """Train to the last step, from the newest checkpoint if there is one, and write model.safetensors."""
    config, method, optim = run.config, run.config.method, run.config.optim
    keep_freed_memory()
    state = begin(config, dataset, run.split, device)
    if note := restore(state, run):
        say(console, note)
    source = Source(
        dataset,
        run.split,
        config.augment,
        method.views,
        labelled=optim.labelled,
        unlabelled=optim.unlabelled,
        seed=config.run.seed,
        device=device,
    )
    window, earlier, began = Window(), state.seconds, time.monotonic()
    with (
        Log(run.log_path, state.step) as log,
        StepProgress(console, title, state.step, optim.steps) as progress,
        stop_requests() as stop,
    ):
        for batch in source.batches(state.step, optim.steps):
            step = state.step
            generator = source.generator(step)
            learner = Learner(state.net, state.average.net, step / optim.steps, generator, state.memory)

            losses = method.loss(learner, batch)
            loss = losses.supervised + method.weight(learner.progress) * losses.unsupervised
            if not torch.isfinite(loss):
                raise UserError(_diverged(run, step))
            state.optimizer.zero_grad()
            loss.backward()
            lr = learning_rate(optim.lr, step, optim.steps)
            set_learning_rate(state.optimizer, lr)
            state.optimizer.step()
            state.average.update(state.net, step)

            state.step += 1
            state.seconds = earlier + time.monotonic() - began
            window.add({**losses.monitors, "supervised": losses.supervised, "unsupervised": losses.unsupervised})
            last = state.step == optim.steps or stop.asked
            row = None
            if last or state.step % config.run.log_every == 0 or state.step % config.run.checkpoint_every == 0:
                row = window.read()
                log.write({"step": state.step, "seconds": state.seconds, "lr": lr, **row})
            progress.advance(state.step, row)
            if run.split.valid and (state.step == optim.steps or state.step % config.run.evaluate_every == 0):
                log.write({"step": state.step, "valid_error": valid_error(state, source, run, dataset)})
            if last or state.step % config.run.checkpoint_every == 0:
                save(state, run)
            if stop.asked:
                raise Interrupted(f"stopped at step {state.step} of {optim.steps}; everything is saved")
    write_model(state, run, dataset, source)
    return state


def valid_error(state: State, source: Source, run: Run, dataset: Dataset) -> float:
    rows = np.asarray(run.split.valid)
    logits = head_logits(state.average.net, source.images, rows, source.mean, source.std)
    return score(logits, dataset.labels[rows], run.config.run.ensemble).error


def save(state: State, run: Run) -> None:
    tensors = {
        **prefixed("net", state.net.state_dict()),
        **prefixed("average", state.average.net.state_dict()),
        **prefixed("momentum", momentum_of(state.net, state.optimizer)),
        **prefixed("memory", state.memory),
    }
    facts = {
        "seconds": state.seconds,
        "split": run.split.hash,
        "config": run.config.model_dump(),
        "threads": torch.get_num_threads(),
    }
    run.checkpoints.save(state.step, tensors, facts)


def restore(state: State, run: Run) -> str:
    """Take up the newest checkpoint. Says so if the weights will not be the bits of an uninterrupted run."""
    saved = run.checkpoints.load()
    if saved is None:
        return ""
    tensors, facts = saved
    if facts["split"] != run.split.hash:
        raise UserError(f"{run.checkpoints.newest()} belongs to another split than {run.folder / 'split.json'}")
    if changed := differences(facts["config"], run.config.model_dump()):
        raise UserError(f"{run.folder / 'config.json'} was changed since the last checkpoint: {'; '.join(changed)}")
    state.net.load_state_dict(unprefixed("net", tensors))
    state.average.net.load_state_dict(unprefixed("average", tensors))
    restore_momentum(state.net, state.optimizer, unprefixed("momentum", tensors))
    for name, tensor in unprefixed("memory", tensors).items():
        state.memory[name].copy_(tensor)
    state.step, state.seconds = facts["step"], facts["seconds"]
    now, before = torch.get_num_threads(), facts["threads"]
    return (
        "" if now == before else f"resumed with {now} threads instead of {before}: weights may differ in the last bits"
    )


def write_model(state: State, run: Run, dataset: Dataset, source: Source) -> None:
    """The averaged network, with all that is needed to use it on new images."""
    height, width, channels = dataset.shape
    facts = {
        "config": run.config.model_dump(),
        "classes": list(dataset.classes),
        "size": [height, width],
        "channels": channels,
        "mean": source.mean,
        "std": source.std,
    }
    write_tensors(run.model_path, state.average.net.state_dict(), facts)


def _diverged(run: Run, step: int) -> str:
    newest = run.checkpoints.newest()
    kept = f"the last checkpoint before it is {newest}" if newest else "no checkpoint was written yet"
    return f"the loss is not finite at step {step}, which was not taken; {kept}; try a new run with a lower optim.lr"
