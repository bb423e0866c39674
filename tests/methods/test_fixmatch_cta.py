"""FixMatch's loss on other views, and rates that follow what the averaged network says of the probe."""

import copy

import numpy as np
import pytest
import torch

from cotrain.augment import PRESETS
from cotrain.augment.ctaugment import initial_rates
from cotrain.data import DataSettings, Drawing, Source, draw_split, open_data
from cotrain.methods.fixmatch import FixMatch
from cotrain.methods.fixmatch_cta import FixMatchCTA
from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.training.state import pool_of
from cotrain.types import Batch, Learner, Pool


def source(method: FixMatchCTA) -> Source:
    digits = open_data("digits")
    split = draw_split(digits, DataSettings(labels=40), seed=0)
    cpu = torch.device("cpu")
    drawing = Drawing(method.views, labelled=8, unlabelled=24, images=PRESETS["paper"])
    pool = pool_of(digits, split)
    return Source(digits.kind.inputs(pool.unlabelled.numpy()), pool, drawing, cpu)


def learner(method: FixMatchCTA, seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    net = MultiHead.cut(wrn(10, 1, channels=1, classes=10, bn_momentum=0.5), 1).train()
    teacher = copy.deepcopy(net)
    for weight in teacher.parameters():
        weight.data.mul_(1.1)
    nothing = torch.zeros(0, dtype=torch.int64)
    memory = method.init(Pool(nothing, nothing, nothing, 100, 10))
    return Learner(net, teacher.eval().requires_grad_(False), 3, 10, torch.Generator().manual_seed(0), memory)


@pytest.mark.parametrize("weak_pass", ["joint", "separate"])
def test_the_loss_is_fixmatchs_on_the_views_by_ctaugment(weak_pass: str) -> None:
    method = FixMatchCTA(threshold=0.13, weak_pass=weak_pass)
    batch = source(method).batch(0)
    ours = method.loss(learner(method), batch)
    theirs = FixMatch(threshold=0.13, weak_pass=weak_pass).loss(learner(method), batch)
    assert 0 < ours.monitors["selected"] < 1
    assert torch.equal(ours["supervised"], theirs["supervised"])
    assert torch.equal(ours["unsupervised"], theirs["unsupervised"])


def test_rates_follow_the_averaged_network() -> None:
    method = FixMatchCTA()
    student, batch = learner(method), source(method).batch(0)
    probabilities = student.teacher(batch.probe)[0].softmax(dim=-1).double().numpy()
    expected = initial_rates().flatten().double().numpy()
    for image, label in enumerate(batch.y.tolist()):
        truth = np.eye(10)[label]
        close = 1 - 0.5 * np.abs(probabilities[image] - truth).sum()
        for place in batch.probe_bins[image].flatten().tolist():
            if place >= 0:
                expected[place] = 0.99 * expected[place] + 0.01 * close
    rates = student.memory["cta_rates"]
    method.loss(student, batch)
    assert rates is student.memory["cta_rates"], "in place"
    assert rates.flatten().numpy() == pytest.approx(expected, abs=1e-6)
    assert (rates < initial_rates()).sum() > 8


def test_the_probe_has_no_gradient_and_changes_no_statistics() -> None:
    method = FixMatchCTA()
    student, batch = learner(method), source(method).batch(0)
    before = {name: tensor.clone() for name, tensor in student.teacher.state_dict().items()}
    probe = batch.probe.requires_grad_()
    losses = method.loss(student, batch)
    losses.total.backward()
    assert probe.grad is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.teacher.state_dict().items())
    without = learner(method)
    FixMatch().loss(without, Batch(**{**vars(batch), "probe": torch.zeros(0)}))
    for ours, theirs in zip(student.net.buffers(), without.net.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_rates_survive_a_checkpoint_and_decide_the_next_views() -> None:
    """A copy of the memory into a fresh one gives the views and rates of a run that was not interrupted."""
    method = FixMatchCTA()
    batches = source(method)
    student, resumed = learner(method), learner(method)
    for step in range(3):
        method.loss(student, batches.batch(step, method.rates(student.memory)))
    resumed.memory["cta_rates"].copy_(student.memory["cta_rates"])
    one, other = batches.batch(3, method.rates(student.memory)), source(method).batch(3, method.rates(resumed.memory))
    assert all(torch.equal(tensor, getattr(other, name)) for name, tensor in vars(one).items())
