"""The schedule, the optimisers and the averaged weights, against the formulas written out."""

import math

import pytest
import torch
from torch import nn

from cotrain import Config, Dataset
from cotrain.data import draw_split
from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.training.ema import Average
from cotrain.training.experiment import Experiment
from cotrain.training.optim import adam, learning_rate, set_learning_rate, sgd

CPU = torch.device("cpu")


def test_learning_rate_follows_the_cosine() -> None:
    assert learning_rate(0.3, 0, 100) == 0.3
    assert learning_rate(0.3, 50, 100) == pytest.approx(0.3 * math.cos(7 * math.pi / 32))
    assert learning_rate(1.0, 100, 100) == pytest.approx(0.19509, abs=1e-5)


def test_weight_decay_spares_batchnorm_and_nothing_else() -> None:
    net = MultiHead.cut(wrn(10, 1, channels=1, classes=3), 2)
    decayed, spared = sgd(net, lr=0.1, momentum=0.9, weight_decay=0.5).param_groups
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
    assert {id(p) for p in spared["params"]} == {id(p) for norm in norms for p in norm.parameters()}
    assert len(decayed["params"]) + len(spared["params"]) == len(list(net.parameters()))


def test_the_optimiser_is_nesterov_sgd_as_written_down() -> None:
    net = nn.Linear(3, 1, bias=False)
    optimizer = sgd(net, lr=0.1, momentum=0.9, weight_decay=0.01)
    weight, velocity = net.weight.detach().double().clone(), torch.zeros(1, 3, dtype=torch.float64)
    for step in range(5):
        lr = learning_rate(0.1, step, 5)
        set_learning_rate(optimizer, lr)
        optimizer.zero_grad()
        (net.weight**3).sum().backward()
        optimizer.step()
        gradient = 3 * weight**2 + 0.01 * weight
        velocity = 0.9 * velocity + gradient
        weight = weight - lr * (gradient + 0.9 * velocity)
    torch.testing.assert_close(net.weight.double(), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_adam_is_as_written_down_and_its_decay_takes_from_kernels_only(momentum: float) -> None:
    net = nn.Linear(3, 1)
    optimizer = adam(net, lr=0.01, momentum=momentum, weight_decay=0.2)
    values = [parameter.detach().double().clone() for parameter in net.parameters()]
    first, second = ([torch.zeros_like(value) for value in values] for _ in range(2))
    for step in range(1, 6):
        optimizer.zero_grad()
        ((net.weight**3).sum() + (net.bias**3).sum()).backward()
        optimizer.step()
        for index, decay in enumerate((0.2, 0.0)):
            gradient = 3 * values[index] ** 2
            first[index] = momentum * first[index] + (1 - momentum) * gradient
            second[index] = 0.999 * second[index] + 0.001 * gradient**2
            unbiased = first[index] / (1 - momentum**step), second[index] / (1 - 0.999**step)
            values[index] = values[index] * (1 - 0.01 * decay) - 0.01 * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    for parameter, value in zip(net.parameters(), values, strict=True):
        torch.testing.assert_close(parameter.double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "used"), [("sgd", {"momentum": 0.5}), ("adam", {"betas": (0.5, 0.999)})])
def test_training_begins_with_the_optimiser_of_the_settings(kind: str, used: dict, toy: Dataset, tiny: Config) -> None:
    changes = {"optim.kind": kind, "optim.lr": 0.07, "optim.momentum": 0.5, "optim.weight_decay": 0.03}
    config = tiny.changed(changes)
    optimizer = Experiment(config, toy, draw_split(toy, config.data, 0), CPU).start().state.optimizer
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.03, 0.0]
    for group in optimizer.param_groups:
        assert {key: group[key] for key in ("lr", *used)} == {"lr": 0.07, **used}


@pytest.mark.parametrize(("decay", "warmup"), [(0.999, False), (0.9, True)])
def test_the_average_follows_weights_and_copies_statistics(decay: float, warmup: bool) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    average = Average(net, decay, warmup)
    expected = net[0].weight.detach().double().clone()
    for step in range(30):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(torch.randn_like(parameter))
        net(torch.randn(4, 1, 5, 5))
        average.update(net, step)
        alpha = min(decay, (1 + step) / (10 + step)) if warmup else decay
        expected = alpha * expected + (1 - alpha) * net[0].weight.detach().double()
    torch.testing.assert_close(average.net[0].weight.double(), expected, rtol=1e-4, atol=1e-5)
    assert all(map(torch.equal, average.net.buffers(), net.buffers()))
    assert not average.net.training
    assert not any(parameter.requires_grad for parameter in average.net.parameters())
