"""The loss against numpy, against co-training with one head, and where its gradients go, in either pass."""

import copy

import pytest
import torch

from cotrain.methods.fixmatch import FixMatch
from cotrain.methods.mhct import MultiHeadCoTraining
from tests.methods.parts import a_batch, a_learner, a_net, cross_entropy, gradients, probabilities, statistics

each_pass = pytest.mark.parametrize("weak_pass", ["joint", "separate"])


@each_pass
def test_strong_views_learn_what_the_weak_ones_are_sure_of(weak_pass: str) -> None:
    method = FixMatch(weak_pass=weak_pass, threshold=0.5)
    net, batch = a_net(method), a_batch(method)
    losses = method.loss(a_learner(method, net), batch)
    weak, strong = probabilities(net, batch.weak[0]), probabilities(net, batch.strong[0])
    sure = weak.max(axis=1) >= 0.5
    assert 0 < sure.sum() < len(sure)
    expected = (cross_entropy(torch.from_numpy(weak.argmax(axis=1)), strong) * sure).mean()
    assert losses["unsupervised"].item() == pytest.approx(expected, rel=1e-5)
    assert losses.monitors["selected"].item() == pytest.approx(sure.mean())
    supervised = cross_entropy(batch.y, probabilities(net, batch.x)).mean()
    assert losses["supervised"].item() == pytest.approx(supervised, rel=1e-5)


@each_pass
def test_it_is_co_training_with_one_head(weak_pass: str) -> None:
    """Batch-norm live: the same images are in the same pass."""
    method = FixMatch(weak_pass=weak_pass, threshold=0.5)
    same = MultiHeadCoTraining(heads=1, normaliser="batch", weak_pass=weak_pass, threshold=0.5)
    batch, net = a_batch(method), a_net(method).train()
    other = copy.deepcopy(net)
    ours, theirs = method.loss(a_learner(method, net), batch), same.loss(a_learner(same, other), batch)
    assert 0 < ours.monitors["selected"] < 1
    assert ours["unsupervised"].item() == pytest.approx(theirs["unsupervised"].item(), rel=1e-5)
    assert ours["supervised"].item() == pytest.approx(theirs["supervised"].item(), rel=1e-5)
    pairs = zip(gradients(ours["unsupervised"], net), gradients(theirs["unsupervised"], other), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    for one, two in zip(statistics(net), statistics(other), strict=True):
        torch.testing.assert_close(one, two)


@each_pass
def test_only_the_strong_views_of_selected_images_learn(weak_pass: str) -> None:
    method = FixMatch(weak_pass=weak_pass, threshold=0.5)
    net, batch = a_net(method), a_batch(method)
    batch.weak.requires_grad_()
    batch.strong.requires_grad_()
    method.loss(a_learner(method, net), batch)["unsupervised"].backward()
    assert batch.weak.grad is None or not batch.weak.grad.any()
    sure = probabilities(net, batch.weak[0].detach()).max(axis=1) >= 0.5
    assert batch.strong.grad[0].flatten(1).any(1).tolist() == sure.tolist()


@each_pass
def test_nothing_selected_is_a_zero_with_a_gradient(weak_pass: str) -> None:
    method = FixMatch(weak_pass=weak_pass, threshold=1)
    net, batch = a_net(method), a_batch(method)
    losses = method.loss(a_learner(method, net), batch)
    assert losses["unsupervised"].item() == 0
    assert not any(gradient.any() for gradient in gradients(losses["unsupervised"], net))


def test_the_two_passes_are_different_computations_while_batchnorm_is_live() -> None:
    joint, separate = FixMatch(weak_pass="joint", threshold=0.3), FixMatch(weak_pass="separate", threshold=0.3)
    batch, net = a_batch(joint), a_net(joint).train()
    live = [
        method.loss(a_learner(method, copy.deepcopy(net)), batch)["unsupervised"].item() for method in (joint, separate)
    ]
    assert live[0] != pytest.approx(live[1], rel=1e-3)
