"""Every method on the rows of a table: repeatable finite losses, and a gradient from unlabelled rows for every head."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from cotrain.config import Config
from cotrain.config.recipes import recipe_named
from cotrain.data import Column, Dataset, from_features
from cotrain.methods import METHODS
from cotrain.testing.trial import LATE, STEPS, UNLABELLED, Trial

ON_TABLES = [name for name in METHODS.built_in if METHODS[name]().views.ctaugment == "none"]


@cache
def table() -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(72) % 3
    values = np.c_[rng.normal(size=(72, 4)) + y[:, None], rng.integers(0, 3, 72)]
    columns = [*map(Column, "abcd"), Column("colour", ("blue", "green", "red"))]
    return from_features(values, y, columns=columns)


def config_of(name: str) -> Config:
    sizes = {"data.labels": 18, "optim.steps": STEPS, "optim.labelled": 8, "optim.unlabelled": UNLABELLED}
    return recipe_named("features").changed({**sizes, "model.hidden": 16, "method": name})


@pytest.mark.parametrize("name", ON_TABLES)
def test_losses_are_finite_and_repeatable_and_teach_every_head(name: str) -> None:
    config = config_of(name)
    trial, again = (Trial(config, table()).confident(5.0).late() for _ in range(2))
    losses, others = trial.loss(LATE), again.loss(LATE)
    for term in losses.terms:
        assert torch.isfinite(losses[term]), term
        assert torch.equal(losses[term], others[term]), term
    losses.total.backward()
    for head in trial.state.net.heads:
        weights = [layer.weight.grad for layer in head.modules() if isinstance(layer, nn.Linear)]
        assert any(grad is not None and grad.any() for grad in weights)
