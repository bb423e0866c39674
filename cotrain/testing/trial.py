"""Try a method on a few of scikit-learn's digits with a small network, in seconds."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from cotrain.config import Config
from cotrain.config.recipes import recipe_named
from cotrain.data import Dataset, Split, draw_split, from_arrays, open_data
from cotrain.methods import METHODS
from cotrain.model.families.wrn import Classifier, Unit
from cotrain.model.stages import Backbone, Extra, Stage, conv
from cotrain.ops import batch_statistics, evaluating, heads_cross_entropy
from cotrain.training.distributed import ALONE
from cotrain.training.experiment import Experiment
from cotrain.training.state import State
from cotrain.training.step import seeded
from cotrain.types import Batch, Learner, Losses, Method

CPU = torch.device("cpu")
STEPS = 20
UNLABELLED = 12  # images per step
PASS = 6  # steps in which every image is seen once
LATE = 16  # at this step every ramp has begun, and every first phase is over
SAVED = 12  # the step of the checkpoint from which a run is resumed
SMALL = {
    "data.labels": 20,
    "optim.steps": STEPS,
    "optim.labelled": 8,
    "optim.unlabelled": UNLABELLED,
    "model.backbone": f"{__name__}:one_unit",
    "model.head_init": "copied",
    "run.log_every": 5,
    "run.checkpoint_every": SAVED,
}


def one_unit(*, channels: int, classes: int, extra: Extra) -> Backbone:
    """A wide residual network with a single unit, in the heads. It has all kinds of layers that larger ones have."""
    bn_momentum = 0.01
    stages = (
        Stage("stem", lambda dropout: conv(channels, 8, 3)),
        Stage("unit", lambda dropout: Unit(8, 64, 4, bn_momentum, dropout)),
        Stage("classifier", lambda dropout: Classifier(64, classes, extra, bn_momentum, dropout)),
    )
    return Backbone("one unit", stages, cut="stem", channels=channels, classes=classes)


@cache
def few_digits() -> Dataset:
    """So few that one pass takes `PASS` steps, at half the size."""
    digits = open_data("digits")
    rows = np.arange(PASS * UNLABELLED)
    return from_arrays(digits.images[rows][:, ::2, ::2], digits.labels[rows], name="few digits")


@dataclass(frozen=True)
class Subject:
    """A method under test, with settings that bring all its phases into the first `STEPS` steps."""

    method: type[Method]
    settings: Mapping[str, Any]  # dotted keys, such as {"method.rounds": 3}

    @cached_property
    def config(self) -> Config:
        with known(self.method) as name:
            return recipe_named("digits").changed({**SMALL, "method": name, **self.settings})

    @property
    def learns_from_unlabelled(self) -> bool:
        return self.config.method.views.any_unlabelled

    @property
    def unlabelled_terms(self) -> tuple[str, ...]:
        return self.method.terms[1:]

    @cached_property
    def _prepared(self) -> "Trial":
        return Trial(self.config).confident().late()

    def at_work(self) -> "Trial":
        """A trial with a confident network, late in a run. Each caller gets its own copy."""
        made = copy.copy(self._prepared)
        made.training = replace(made.training, state=copy.deepcopy(made.state))
        return made


@contextmanager
def known(method: type[Method]) -> Iterator[str]:
    """The method's name. A method that no package provides is registered for the time being."""
    name = vars(method).get("name", method.__name__)
    if name in METHODS and METHODS[name] is method:
        yield name
        return
    with METHODS.with_added(name, method):
        yield name


class Trial:
    """A method's state, and its loss at any step, without an optimiser."""

    def __init__(self, config: Config, dataset: Dataset | None = None, split: Split | None = None) -> None:
        self.dataset = dataset or few_digits()
        self.config, self.split = config, split or split_of(self.dataset, config)
        self.method: Method = config.method
        self.training = Experiment(config, self.dataset, self.split, CPU).start()
        self.source = self.training.source

    @property
    def state(self) -> State:
        return self.training.state

    def confident(self, factor: float = 30.0) -> "Trial":
        """Make the network confident, with heads that mostly agree. A factor of 0 makes all classes equally likely."""
        noise = torch.Generator().manual_seed(0)
        for module in self.state.net.modules():
            if isinstance(module, nn.Linear):
                module.weight.data.add_(torch.randn(module.weight.shape, generator=noise), alpha=0.02).mul_(factor)
        self.state.average.net.load_state_dict(self.state.net.state_dict())
        return self

    def learner(self, step: int) -> Learner:
        state = self.state
        return Learner(state.net, state.average.net, step, STEPS, self.source.generator(step), state.memory)

    def batch(self, step: int) -> Batch:
        return self.source.batch(step, self.method.rates(self.state.memory))

    def refresh(self, step: int) -> None:
        self.state.step = step
        if step in self.training.refresh_steps:
            self.training.refresh()

    def loss(self, step: int, batch: Batch | None = None) -> Losses:
        learner = self.learner(step)
        with seeded(learner.generator, ALONE) if self.method.dropout else nullcontext():
            return self.method.loss(learner, batch or self.batch(step))

    @torch.no_grad()
    def labelled_loss(self) -> float:
        """Cross-entropy on the labelled images, without augmentation or dropout."""
        net, rows = self.state.net, np.asarray(self.split.labelled)
        images = self.source.inputs.plain(rows, CPU)
        with evaluating(net), batch_statistics(net):
            return heads_cross_entropy(net(images), self.dataset.labels[rows]).mean().item()

    def late(self) -> "Trial":
        """Bring the state to a late step: all refreshes have happened, and a whole pass has filled the memory."""
        with torch.no_grad():
            for step in range(LATE):
                self.refresh(step)
                if self.state.memory and step >= LATE - PASS:
                    keep = {name: tensor.clone() for name, tensor in self.state.net.state_dict().items()}
                    self.loss(step)
                    self.state.net.load_state_dict(keep)
        self.refresh(LATE)
        return self


def split_of(dataset: Dataset, config: Config) -> Split:
    return draw_split(dataset, config.data.model_copy(update={"test_share": 0.0}), seed=0)
