"""Short runs of a user's own network. It has no batch-norm, which sees fewer images in each of two processes."""

from pathlib import Path

import torch
from torch import nn

import cotrain
from cotrain.training.distributed import own_rank
from tests.few_digits import few_digits

STEPS = 8
SETTINGS = {
    "data.labels": 20,
    "optim.steps": STEPS,
    "optim.labelled": 8,
    "optim.unlabelled": 16,
    "optim.lr": 0.03,
    "run.log_every": 1,
    "run.baseline": False,
    "run.report": False,
}
METHODS = ("mhct", "mean_teacher")  # the second one also learns from the averaged network


def trunk_of(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())


def head_of(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes))


def build(*, channels, classes):
    return trunk_of(channels), lambda: head_of(classes)


def trunk_of_this_process() -> nn.Module:
    """Other initial weights in each process, as in a program that sets no seed."""
    torch.manual_seed(own_rank())
    return trunk_of(1)


def fit_each(folder: Path) -> None:
    """By a function, and by objects."""
    for method in METHODS:
        for how, model in {"function": build, "objects": (trunk_of_this_process(), lambda: head_of(10))}.items():
            settings = SETTINGS | {"method": method}
            cotrain.fit(few_digits(), out=folder / f"{method}-{how}", settings=settings, model=model)
