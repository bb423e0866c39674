"""Training state: how it is initialised, saved and restored."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.config import Config, differences
from cotrain.data import Dataset, Split
from cotrain.data.inputs import Inputs
from cotrain.data.kinds import evenly
from cotrain.device import pick_precision
from cotrain.model import MultiHead
from cotrain.model.build import load_weights
from cotrain.model.pretrained import Standardise, measuring
from cotrain.networks import build_network
from cotrain.ops import evaluating
from cotrain.runs.checkpoint import (
    optimizer_memory,
    prefixed,
    restore_memory,
    restore_optimizer,
    unprefixed,
)
from cotrain.runs.run import Run
from cotrain.runs.schema import CheckpointFacts
from cotrain.runs.upgrade import read_config
from cotrain.storage.reading import checked
from cotrain.training.distributed import ALONE, Ranks
from cotrain.training.ema import Average
from cotrain.training.optim import Slow, adam, sgd
from cotrain.types import Pool, UserError

Floats = NDArray[np.float64]
MEASURED = 5_000  # unlabelled images whose features set the scale, at most


@dataclass
class State:
    """Everything that changes during training, and therefore everything in a checkpoint."""

    net: MultiHead
    average: Average[MultiHead]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler  # scales float16 gradients; does nothing in other precisions
    memory: dict[str, Tensor]
    step: int = 0
    seconds: float = 0.0


def pool_of(dataset: Dataset, split: Split, shares: Floats | None = None, weights: Floats | None = None) -> Pool:
    """`shares` are those of the classes among the unlabelled images, `weights` those of the labels, if given."""
    labelled, unlabelled = torch.tensor(split.labelled), torch.tensor(split.unlabelled)
    known = [None if each is None else torch.from_numpy(each) for each in (shares, weights)]
    return Pool(labelled, dataset.labels[labelled], unlabelled, len(dataset.images), len(dataset.classes), *known)


def begin(
    config: Config,
    pool: Pool,
    inputs: Inputs,
    channels: int,
    device: torch.device,
    *,
    pretrained: bool,
    weights: Mapping[str, Tensor] | None = None,
) -> State:
    """The state before the first step. `weights` replace the random ones, except where a method has more outputs."""
    net = build_network(config, pool.classes, channels).to(device).train()
    own = net.state_dict()
    for name, tensor in (weights or {}).items():
        if name in own and own[name].shape == tensor.shape:
            own[name].copy_(tensor)
    net = net.channels_last()
    measure_features(net, inputs, pool.unlabelled.numpy(), device)
    optim, make = config.optim, {"sgd": sgd, "adam": adam}[config.optim.kind]
    optimizer = make(
        net,
        lr=optim.lr,
        momentum=optim.momentum,
        weight_decay=optim.weight_decay,
        slow=Slow(net.trunk, optim.trunk_lr) if pretrained else None,
    )
    memory = {name: tensor.to(device) for name, tensor in config.method.init(pool).items()}
    precision = pick_precision(config.run.precision, device)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    return State(net, Average(net, config.optim.ema, config.optim.ema_warmup), optimizer, scaler, memory)


@torch.no_grad()
def measure_features(net: MultiHead, inputs: Inputs, rows: NDArray[np.int64], device: torch.device) -> None:
    """Set the layers that standardise pretrained features, if the network has any, by some unlabelled images."""
    if not any(isinstance(module, Standardise) for module in net.modules()):
        return
    with measuring(net), evaluating(net):
        some = evenly(rows, MEASURED)
        for part in np.array_split(some, -(-len(some) // inputs.at_once(net))):
            net(inputs.plain(part, device))


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
    """Restore a checkpoint. Yields a warning if the weights may differ from those of an uninterrupted run."""
    where = run.checkpoints.newest()
    known = checked(CheckpointFacts, facts, where)
    if known.split != run.split.hash:
        raise UserError(f"{where} does not belong to the split in {run.folder / 'split.json'}")
    earlier = read_config(known.config, where)  # settings that are newer than the checkpoint get their defaults
    if changed := differences(earlier.model_dump(), run.config.model_dump()):
        raise UserError(f"{run.folder / 'config.json'} has changed since the last checkpoint: {'; '.join(changed)}")
    for net, name in ((state.net, "net"), (state.average.net, "average")):
        load_weights(net, unprefixed(name, tensors), where)
    restore_optimizer(state.net, state.optimizer, unprefixed("optimizer", tensors), where)
    restore_memory(state.memory, unprefixed("memory", tensors), where)
    try:
        state.scaler.load_state_dict(known.scaler)
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{where} is damaged: its gradient scaler is incomplete") from error
    state.step, state.seconds = known.step, known.seconds
    for one, many, now in (("thread", "threads", torch.get_num_threads()), ("process", "processes", ranks.size)):
        if now != (before := getattr(known, many)):
            what = f"{now} {one if now == 1 else many} instead of {before}"
            yield f"resumed with {what}: weights may differ from an uninterrupted run's"


def write_model(net: MultiHead, run: Run, dataset: Dataset, inputs: Inputs) -> None:
    """Write the averaged network, with everything needed to use it on new images."""
    height, width, channels = dataset.shape
    facts = {
        "config": run.config.model_dump(),
        "classes": list(dataset.classes),
        "size": [height, width],
        "channels": channels,
        **inputs.facts,
    }
    run.write_model(net.state_dict(), facts)
