"""What the processes of test_distributed.py compute: each writes what it found to the folder that it is given."""

import contextlib
import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cotrain import Config, Dataset, from_arrays, open_data, recipe_named
from cotrain.cli.main import main
from cotrain.data import Split, draw_split
from cotrain.methods import METHODS
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.methods.mhct_graph import GraphCoTraining
from cotrain.ops import heads_cross_entropy
from cotrain.training.distributed import ALONE, Ranks, own_rank, process_group
from cotrain.training.experiment import Experiment
from cotrain.training.step import Training
from cotrain.types import Batch, Learner, Look, Losses, Pool, Term, Views

CPU = torch.device("cpu")
STEP = 7
NODES = 60  # of the graph that is made of a sample
SMALL = recipe_named("digits").changed(
    {
        "data.labels": 20,
        "optim.labelled": 8,
        "optim.unlabelled": 24,
        "optim.steps": 20,
        "model.head_init": "copied",
        "model.bn_momentum": 1.0,
    }
)


class Everything(MultiHeadCoTraining):
    """All that a method may use: images mixed with each other, the teacher, the generator and memory."""

    @property
    def views(self) -> Views:
        return Views(weak=2, strong=1, whole=True)

    def init(self, pool: Pool) -> dict[str, Tensor]:
        return {"seen": torch.zeros(pool.images)}

    def loss(self, learner: Learner, batch: Batch) -> Losses:
        learner.memory["seen"][batch.unlabelled_rows] += 1
        with torch.no_grad():
            target = learner.teacher(batch.weak.flatten(0, 1)).softmax(-1).mean(0).unflatten(0, (2, -1)).mean(0)
        order = torch.randperm(len(target), generator=learner.generator)
        mixed = learner.net(0.7 * batch.strong[0] + 0.3 * batch.strong[0][order]).log_softmax(-1)
        unsupervised = -((0.7 * target + 0.3 * target[order]) * mixed).sum(-1).mean()
        supervised = heads_cross_entropy(learner.net(batch.x), batch.y).mean()
        terms = {"supervised": Term(supervised), "unsupervised": Term(unsupervised, self.weight(learner.progress))}
        return Losses(terms, {"seen": learner.memory["seen"].mean()})


class SampledGraph(GraphCoTraining):
    """As if all images were too many for one graph: some of them make it, the others are attached."""

    def refresh(self, learner: Learner, pool: Pool, look: Look) -> None:
        with patch.multiple("cotrain.graph", LARGEST=NODES, NODES=NODES):
            super().refresh(learner, pool, look)


VARIANTS = (
    {"strong_views": "shared"},
    {"weak_pass": "joint"},
    {"weak_pass": "joint", "strong_views": "shared"},
    {"normaliser": "batch"},
    {"normaliser": "batch", "reduction": "sum", "weak_pass": "joint"},
    {"heads": 1},
    {"heads": 5},
)
OF_MHCT = {" ".join(f"{key}={value}" for key, value in variant.items()): variant for variant in VARIANTS}
CASES = {
    name: SMALL.model_copy(update={"method": method})
    for name, method in {
        **{name: kind() for name, kind in METHODS.items()},
        "trinet": METHODS["trinet"](passes=2, rounds=4),
        "comatch": METHODS["comatch"](bank=32, threshold=0.5),
        **{name: MultiHeadCoTraining(**variant) for name, variant in OF_MHCT.items()},
        "routed, weak_pass=joint": METHODS["mhct_routed"](weak_pass="joint"),
        "routed, heads=5": METHODS["mhct_routed"](heads=5),
        "graph of a sample": SampledGraph(),
        "everything": Everything(),
    }.items()
}


@cache
def digits() -> tuple[Dataset, Split]:
    every, rows = open_data("digits"), np.arange(360)
    dataset = from_arrays(every.images[rows], every.labels[rows], name="some digits")
    return dataset, draw_split(dataset, SMALL.data, SMALL.run.seed)


def decided(config: Config, ranks: Ranks = ALONE) -> Training:
    """Batch-norm frozen as one batch left it; heads that are alike, and sure enough to select some images, not all."""
    training = Experiment(config, *digits(), CPU, ranks).start()
    state = training.state
    torch.manual_seed(0)  # of dropout
    state.net(Experiment(config, *digits(), CPU).source.batch(0).x)
    state.net.eval()
    noise = torch.Generator().manual_seed(0)
    for module in state.net.modules():
        if isinstance(module, nn.Linear):
            module.weight.data.add_(torch.randn(module.weight.shape, generator=noise), alpha=0.05).mul_(20)
    state.average.net.load_state_dict(state.net.state_dict())
    return training


def renew(training: Training) -> None:
    """Memory as it is after some steps: what comes once a pass or a round was done, and these images were seen."""
    state, source = training.state, training.source
    for state.step in range(STEP + 1):
        if state.step in training.refresh_steps:
            training.refresh()
    if state.memory:
        with torch.no_grad():
            training.objective(source.batch(STEP), STEP, source.generator(STEP))


def loss_and_gradients(name: str, config: Config, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    training = decided(config, ranks)
    state, source = training.state, training.source
    renew(training)
    batch = source.batch(STEP)
    yield from ((f"{name}/batch/{key}", tensor) for key, tensor in vars(batch).items())
    if isinstance(config.method, MultiHeadCoTraining):
        yield f"{name}/selected", config.method.pseudo_label(state.net(batch.weak[0][ranks.own]))[1]
    total, losses = training.objective(batch, STEP, source.generator(STEP))
    total.backward()
    logged = {"total": total, **losses.logged}
    yield from ((f"{name}/term/{key}", value.detach()) for key, value in logged.items())
    yield from ((f"{name}/memory/{key}", tensor) for key, tensor in state.memory.items())
    yield from ((f"{name}/gradient/{key}", weight.grad) for key, weight in state.net.named_parameters())


def after_steps(config: Config, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """What a rank computes the fourth step's loss with, batch-norm live."""
    training = Experiment(config, *digits(), CPU, ranks).start()
    state, source = training.state, training.source
    for step in range(3):
        training.update(source.batch(step))
    training.objective(source.batch(3), 3, source.generator(3))
    yield from ((f"steps/weight/{key}", weight.detach()) for key, weight in state.net.named_parameters())
    yield from ((f"steps/teacher/{key}", tensor) for key, tensor in state.average.net.state_dict().items())


def ended(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main(arguments)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), errors.getvalue()


def work(folder: Path, commands: list[list[str]]) -> None:
    (folder / f"rank-{own_rank()}.json").write_text(json.dumps([ended(command) for command in commands]))
    with process_group() as ranks:
        found = [pair for name, config in CASES.items() for pair in loss_and_gradients(name, config, ranks)]
        found += after_steps(CASES["everything"], ranks)
    save_file({key: tensor.clone().contiguous() for key, tensor in found}, folder / f"rank-{own_rank()}.safetensors")
