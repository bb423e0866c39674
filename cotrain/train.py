"""The training loop, all of it: sample -> views -> loss -> backward -> step -> average -> log."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from cotrain.allocator import keep_freed_memory
from cotrain.augment import draw_weak
from cotrain.checkpoint import optimizer_memory, prefixed, restore_optimizer, unprefixed, write_tensors
from cotrain.config import Config, differences
from cotrain.data import Dataset, Source, Split
from cotrain.device import check_compiler, pick_device, pick_precision
from cotrain.ema import Average
from cotrain.evaluate import head_logits
from cotrain.heads import warnings_of_log
from cotrain.interrupt import Interrupted, stop_requests
from cotrain.log import Log, StepProgress, Window, read_log
from cotrain.model import MultiHead, backbone
from cotrain.optim import adam, learning_rate, set_learning_rate, sgd
from cotrain.progress import say
from cotrain.ranks import ALONE, Ranks
from cotrain.run import Run
from cotrain.track import check_tracker, tracker
from cotrain.types import Batch, Learner, Losses, Pool, UserError
from cotrain.watch import looks


@dataclass
class State:
    """Everything that changes while training, and so everything a checkpoint holds."""

    net: MultiHead
    average: Average
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler  # of float16's gradients; does nothing in other precisions
    memory: dict[str, Tensor]
    step: int = 0
    seconds: float = 0.0


class Objective(nn.Module):
    """The method's loss as a module: the network may be called several times in it, and backward goes through it once.

    It is what several ranks compute in parallel.
    """

    def __init__(self, config: Config, state: State, device: torch.device, ranks: Ranks) -> None:
        super().__init__()
        self.net, self.method, self.steps, self.ranks = state.net, config.method, config.optim.steps, ranks
        self.teacher = state.average.net  # its batch-norm statistics are rank 0's on all ranks, as in a checkpoint
        self.autocast = autocast(config, device)
        self.as_seen = ranks.divide(state.net), ranks.divide(state.average.net), state.memory

    def forward(self, batch: Batch, step: int, generator: torch.Generator) -> tuple[Tensor, Losses]:
        net, teacher, memory = self.as_seen
        learner = Learner(net, teacher, step, self.steps, generator, memory)
        randomness = seeded(generator, self.ranks) if self.method.dropout else nullcontext()
        with randomness, self.autocast:
            losses = self.method.loss(learner, batch)
        return losses.supervised + self.method.weight(learner.progress) * losses.unsupervised, losses


@contextmanager
def seeded(generator: torch.Generator, ranks: Ranks) -> Iterator[None]:
    """Dropout draws from torch's own generators: the same at the same step, and another on each rank."""
    with torch.random.fork_rng([generator.device] if generator.device.type == "cuda" else []):
        torch.manual_seed(generator.initial_seed() + ranks.rank)
        yield


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
            extra=config.method.extra,
        )
        return MultiHead.cut(
            stages,
            config.method.heads,
            after=config.method.share or config.model.share,
            head_init=config.model.head_init,
            dropout=config.method.dropout,
        )


def pool_of(dataset: Dataset, split: Split) -> Pool:
    labelled, unlabelled = torch.tensor(split.labelled), torch.tensor(split.unlabelled)
    return Pool(labelled, dataset.labels[labelled], unlabelled, len(dataset.images), len(dataset.classes))


def begin(config: Config, dataset: Dataset, split: Split, device: torch.device) -> State:
    net = build_network(config, len(dataset.classes), dataset.shape[-1]).to(device).train()
    if config.run.channels_last:
        net = net.channels_last()
    make = {"sgd": sgd, "adam": adam}[config.optim.kind]
    optimizer = make(net, lr=config.optim.lr, momentum=config.optim.momentum, weight_decay=config.optim.weight_decay)
    memory = {name: tensor.to(device) for name, tensor in config.method.init(pool_of(dataset, split)).items()}
    precision = pick_precision(config.run.precision, device)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    return State(net, Average(net, config.optim.ema, config.optim.ema_warmup), optimizer, scaler, memory)


def check_trainable(config: Config, dataset: Dataset, ranks: Ranks = ALONE) -> None:
    """Fail before anything is written where training could not begin: device, network, views or precision."""
    height, width, channels = dataset.shape
    device = pick_device(config.run.device, ranks.local)
    pick_precision(config.run.precision, device)
    if config.run.compile:
        check_compiler(device)
    if config.run.batchnorm == "synchronised" and device.type == "cpu":
        raise UserError("run.batchnorm=synchronised is for GPUs; use local or auto")
    if ranks.size > 1 and ":" in config.run.device:
        raise UserError(
            f"run.device={config.run.device} is one device for {ranks.size} processes; use cuda, cpu or auto"
        )
    check_tracker(config.run.track)
    ranks.check_divides(labelled=config.optim.labelled, unlabelled=config.unlabelled)
    draw_weak(config.augment, 1, height, width, np.random.default_rng(0))
    if config.method.views.ctaugment != "none" and channels not in (1, 3):
        raise UserError(f"{config.method.name} needs images of 1 or 3 channels, for CTAugment; these have {channels}")
    few = min(config.optim.labelled, config.unlabelled, 2)
    try:
        net = build_network(config, len(dataset.classes), channels).train()
        net(torch.zeros(few, channels, height, width))
    except UserError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        size = f"{height}x{width} with {channels} channels"
        raise UserError(f"{config.model.backbone} cannot be trained on images of {size} ({reason})") from error


def check_batches(config: Config, split: Split) -> None:
    """Refuse a step that takes more unlabelled images than there are."""
    views = config.method.views
    if views.any_unlabelled and len(split.unlabelled) < config.unlabelled:
        raise UserError(
            f"there are {len(split.unlabelled):,} unlabelled images, and a step takes {config.unlabelled:,}: "
            f"set optim.unlabelled to {len(split.unlabelled)} or less"
        )


def source_of(
    config: Config,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    ranks: Ranks = ALONE,
    kind: type[Source] = Source,
) -> Source:
    return kind(
        dataset,
        split,
        config.augment,
        config.method.views,
        labelled=config.optim.labelled,
        unlabelled=config.unlabelled,
        seed=config.run.seed,
        device=device,
        part=(ranks.rank, ranks.size),
    )


def objective_of(config: Config, state: State, device: torch.device, ranks: Ranks = ALONE) -> nn.Module:
    """The loss to call at every step, compiled and in parallel as the settings say."""
    if synchronised(config, device, ranks):
        nn.SyncBatchNorm.convert_sync_batchnorm(state.net)
    if config.run.compile:
        state.net.compile()
    return ranks.parallel(Objective(config, state, device, ranks), device)


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """The precision of what is computed inside.

    Without its cache: some versions of torch keep the weights of a pass without gradient for the pass that needs one.
    """
    precision = pick_precision(config.run.precision, device)
    return torch.autocast(device.type, precision, enabled=precision != torch.float32, cache_enabled=False)


def take_step(
    config: Config, state: State, objective: nn.Module, batch: Batch, generator: torch.Generator
) -> tuple[float, Losses]:
    """Loss, backward, optimiser, average. Returns the learning rate and the losses.

    Nothing here waits for a GPU, except float16, whose scaler asks whether the gradients are finite.
    """
    loss, losses = objective(batch, state.step, generator)
    state.optimizer.zero_grad()
    state.scaler.scale(loss).backward()
    falling = config.optim.kind == "sgd"
    lr = learning_rate(config.optim.lr, state.step, config.optim.steps) if falling else config.optim.lr
    set_learning_rate(state.optimizer, lr)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.average.update(state.net, state.step)
    state.step += 1
    return lr, losses


def refresh(config: Config, state: State, pool: Pool, source: Source, ranks: Ranks = ALONE) -> None:
    """What the method does once a pass or a round. Rank 0 does it for all."""
    generator = source.generator(state.step)
    learner = Learner(state.net, state.average.net, state.step, config.optim.steps, generator, state.memory)

    def look(rows: Tensor) -> Tensor:
        return head_logits(state.net, source.images, rows.numpy(), source.mean, source.std, extra=True)

    def looked() -> dict[str, Tensor]:
        with seeded(generator, ranks):
            config.method.refresh(learner, pool, look)
        return {name: tensor.cpu() for name, tensor in state.memory.items()}

    for name, tensor in ranks.from_first(looked).items():
        state.memory[name].copy_(tensor)


def train(
    run: Run,
    dataset: Dataset,
    device: torch.device,
    console: Console,
    title: str,
    ranks: Ranks = ALONE,
    then: float = 0.0,
) -> State:
    """Train to the last step, from the newest checkpoint if there is one, and write model.safetensors.

    `then` are the seconds that other work will take afterwards, for those who look at the time left.
    """
    config, optim = run.config, run.config.optim
    keep_freed_memory()
    state = begin(config, dataset, run.split, device)
    if saved := ranks.from_first(run.checkpoints.load):
        for note in restore(state, run, *saved, ranks):
            say(console, note)
    source, pool = source_of(config, dataset, run.split, device, ranks), pool_of(dataset, run.split)
    objective = objective_of(config, state, device, ranks)
    window, earlier, began = Window(), state.seconds, time.monotonic()
    with (
        Log(
            run.log_path if ranks.first else None,
            state.step,
            tracker(config.run.track if ranks.first else "none", run.folder, state.step),
        ) as log,
        StepProgress(console, title, state.step, optim.steps, then) as progress,
        ranks.together(lambda: _lost(run, state, ranks)),
        stop_requests() as stop,
    ):
        for batch in source.batches(state.step, optim.steps, state.memory):
            if config.method.refreshes(pool, state.step, optim.steps, config.unlabelled):
                refresh(config, state, pool, source, ranks)
            lr, losses = take_step(config, state, objective, batch, source.generator(state.step))
            state.seconds = earlier + time.monotonic() - began
            window.add({**losses.monitors, "supervised": losses.supervised, "unsupervised": losses.unsupervised})

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
            looked = time.monotonic()
            if ranks.first:
                for said in looks(run, dataset, state.step, state.average.net, source):
                    log.write({"step": state.step, **said})
                for warning in warnings_of_log(read_log(run.log_path)) if state.step == optim.steps // 2 else ():
                    say(console, f"{title}, halfway: {warning}")
            began += time.monotonic() - looked  # not of the training
            if ranks.first and saving:
                save(state, run, ranks)
            if stopping:
                raise Interrupted(f"stopped at step {state.step} of {optim.steps}; everything is saved")
    if ranks.first:
        write_model(state, run, dataset, source)
    return state


def synchronised(config: Config, device: torch.device, ranks: Ranks) -> bool:
    """Whether batch-norm takes its statistics from the whole batch, or from each rank's part of it."""
    return ranks.size > 1 and device.type == "cuda" and config.run.batchnorm != "local"


def save(state: State, run: Run, ranks: Ranks = ALONE) -> None:
    tensors = {
        **prefixed("net", state.net.state_dict()),
        **prefixed("average", state.average.net.state_dict()),
        **prefixed("optimizer", optimizer_memory(state.net, state.optimizer)),
        **prefixed("memory", state.memory),
    }
    facts = {
        "seconds": state.seconds,
        "split": run.split.hash,
        "config": run.config.model_dump(),
        "scaler": state.scaler.state_dict(),
        "threads": torch.get_num_threads(),
        "processes": ranks.size,
    }
    run.checkpoints.save(state.step, tensors, facts)


def restore(
    state: State, run: Run, tensors: dict[str, Tensor], facts: dict[str, Any], ranks: Ranks = ALONE
) -> Iterator[str]:
    """Take up a checkpoint. Says so if the weights will not be the bits of an uninterrupted run."""
    if facts["split"] != run.split.hash:
        raise UserError(f"{run.checkpoints.newest()} belongs to another split than {run.folder / 'split.json'}")
    if changed := differences(facts["config"], run.config.model_dump()):
        raise UserError(f"{run.folder / 'config.json'} was changed since the last checkpoint: {'; '.join(changed)}")
    state.net.load_state_dict(unprefixed("net", tensors))
    state.average.net.load_state_dict(unprefixed("average", tensors))
    restore_optimizer(state.net, state.optimizer, unprefixed("optimizer", tensors))
    for name, tensor in unprefixed("memory", tensors).items():
        state.memory[name].copy_(tensor)
    state.scaler.load_state_dict(facts["scaler"])
    state.step, state.seconds = facts["step"], facts["seconds"]
    for one, many, now in (("thread", "threads", torch.get_num_threads()), ("process", "processes", ranks.size)):
        if now != facts[many]:
            what = f"{now} {one if now == 1 else many} instead of {facts[many]}"
            yield f"resumed with {what}: weights may differ from an uninterrupted run's"


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
    kept = f"the last checkpoint before that is {newest}" if newest else "no checkpoint was written yet"
    return f"the loss was found not to be finite at step {step}; {kept}; try a new run with a lower optim.lr"


def _lost(run: Run, state: State, ranks: Ranks) -> str:
    newest = run.checkpoints.newest()
    if newest is not None:
        kept = f"the newest checkpoint is {newest}; "
    else:  # another rank may be on a machine that does not see the run folder
        kept = "there is no checkpoint yet; " if ranks.first else ""
    return f"another process of this job has ended, at step {state.step}; {kept}start the job again with --resume"
