"""The loss against numpy, the annealed signal against its formula, and where gradients go, in either pass."""

import copy
import math

import numpy as np
import pytest
import torch

from cotrain.methods.fixmatch import FixMatch
from cotrain.methods.uda import UDA
from tests.methods.parts import a_batch, a_learner, a_net, cross_entropy, gradients, probabilities

each_pass = pytest.mark.parametrize("weak_pass", ["joint", "separate"])


@each_pass
def test_strong_views_learn_sharpened_predictions_of_weak_ones(weak_pass: str) -> None:
    method = UDA(weak_pass=weak_pass, threshold=0.5)
    net, batch = a_net(method), a_batch(method)
    losses = method.loss(a_learner(method, net), batch)
    weak, strong = probabilities(net, batch.weak[0]), probabilities(net, batch.strong[0])
    sharp = weak ** (1 / 0.4) / (weak ** (1 / 0.4)).sum(axis=1, keepdims=True)
    sure = weak.max(axis=1) > 0.5
    assert 0 < sure.sum() < (sharp.max(axis=1) > 0.5).sum(), "sharpened predictions would select more"
    expected = ((sharp * np.log(sharp / strong)).sum(axis=1) * sure).mean()
    assert losses["unsupervised"].item() == pytest.approx(expected, rel=1e-4)
    assert losses.monitors["selected"].item() == pytest.approx(sure.mean())
    supervised = cross_entropy(batch.y, probabilities(net, batch.x)).mean()
    assert losses["supervised"].item() == pytest.approx(supervised, rel=1e-5)


@each_pass
def test_only_the_strong_views_of_selected_images_learn(weak_pass: str) -> None:
    method = UDA(weak_pass=weak_pass, threshold=0.5)
    net, batch = a_net(method), a_batch(method)
    batch.weak.requires_grad_()
    batch.strong.requires_grad_()
    method.loss(a_learner(method, net), batch)["unsupervised"].backward()
    assert batch.weak.grad is None or not batch.weak.grad.any()
    sure = probabilities(net, batch.weak[0].detach()).max(axis=1) > 0.5
    assert batch.strong.grad[0].flatten(1).any(1).tolist() == sure.tolist()


@each_pass
def test_very_sharp_predictions_are_fixmatchs_pseudo_labels(weak_pass: str) -> None:
    """Batch-norm live: the same images are in the same pass."""
    method = UDA(weak_pass=weak_pass, threshold=0.5, temperature=1e-3)
    other = FixMatch(weak_pass=weak_pass, threshold=0.5)
    batch, net = a_batch(method), a_net(method).train()
    same = copy.deepcopy(net)
    ours, theirs = method.loss(a_learner(method, net), batch), other.loss(a_learner(other, same), batch)
    assert ours["unsupervised"].item() == pytest.approx(theirs["unsupervised"].item(), rel=1e-4)
    for one, two in zip(gradients(ours["unsupervised"], net), gradients(theirs["unsupervised"], same), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


def test_a_confidence_equal_to_the_threshold_is_not_enough() -> None:
    method = UDA(threshold=0.5)
    net, batch = a_net(method, classes=2), a_batch(method, classes=2)
    for parameter in net.parameters():
        parameter.data.zero_()
    losses = method.loss(a_learner(method, net), batch)
    assert losses.monitors["selected"] == 0
    assert losses["unsupervised"].item() == 0 and losses["unsupervised"].requires_grad


@pytest.mark.parametrize(
    ("tsa", "step", "rise"),
    [("linear", 5, 0.5), ("exp", 8, math.exp(-1)), ("log", 1, 1 - math.exp(-0.5))],
    ids=["linear", "exp", "log"],
)
def test_labelled_images_that_are_learnt_too_early_have_no_loss(tsa: str, step: int, rise: float) -> None:
    method = UDA(tsa=tsa)
    net, batch = a_net(method), a_batch(method, labelled=30)
    predicted = probabilities(net, batch.x)[np.arange(30), batch.y.numpy()]
    kept = predicted <= 1 / 3 + rise * 2 / 3
    assert 0 < kept.sum() < 30
    losses = method.loss(a_learner(method, net, step=step), batch)
    assert losses["supervised"].item() == pytest.approx(-np.log(predicted[kept]).mean(), rel=1e-5)


@pytest.mark.parametrize("tsa", ["linear", "exp", "log"])
def test_in_the_end_all_labelled_images_are_learnt_but_maybe_none_at_first(tsa: str) -> None:
    method = UDA(tsa=tsa)
    assert method.most(1, 10) == pytest.approx(1, abs=0.01)
    assert method.most(0, 10) == pytest.approx(0.1, abs=0.01)
    known = torch.tensor([[9.0, 0.0], [0.0, 9.0]], requires_grad=True)
    loss = method.supervised(known, torch.tensor([0, 1]), 0)
    assert loss.item() == 0 and loss.requires_grad
