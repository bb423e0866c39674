"""The three losses against numpy, the attack against its definition, and which network learns from what."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cotrain.methods.deep_cotraining import DeepCoTraining
from cotrain.model import MultiHead
from cotrain.types import Batch
from tests.methods.parts import a_batch, a_learner, a_net, cross_entropy, softmax, statistics, unlabelled

METHOD = DeepCoTraining()


def said(net: MultiHead, head: int, images: Tensor) -> np.ndarray:
    with torch.no_grad():
        return softmax(net.heads[head](images).double().numpy())


def everything(batch: Batch) -> Tensor:
    return torch.cat([batch.x, batch.weak[0]])


def fooling(net: MultiHead, head: int, batch: Batch) -> Tensor:
    """The fast gradient sign method against one network, an image at a time."""
    network, images = net.heads[head], []
    for row, image in enumerate(everything(batch)):
        image = image[None].clone().requires_grad_()
        logits = network(image)
        target = batch.y[row : row + 1] if row < len(batch.y) else logits.argmax(1)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, target), image)
        images.append(image.detach()[0] + 0.08 * gradient[0].sign())
    return torch.stack(images)


def test_the_networks_share_nothing() -> None:
    assert METHOD.share == "none"
    assert not list(a_net(METHOD).trunk.parameters())
    with pytest.raises(ValueError, match="heads"):
        DeepCoTraining(heads=3)


def test_the_attack_is_a_step_up_each_networks_own_loss() -> None:
    net, batch = a_net(METHOD), a_batch(METHOD)
    classes = torch.cat([batch.y.expand(2, -1), net(batch.weak[0]).argmax(-1)], dim=1)
    ours = METHOD.attack(a_learner(METHOD, net), everything(batch), classes)
    for head in range(2):
        expected = fooling(net, head, batch)
        assert ((ours[head] - expected).abs() < 1e-6).float().mean() > 0.999, "up to signs of nearly nothing"
        before = cross_entropy(classes[head], said(net, head, everything(batch)))
        assert (cross_entropy(classes[head], said(net, head, ours[head])) > before).mean() > 0.9
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not ours.requires_grad


def test_the_losses_are_as_in_the_paper() -> None:
    net, batch = a_net(METHOD), a_batch(METHOD)
    losses = METHOD.loss(a_learner(METHOD, net), batch)
    labelled = sum(cross_entropy(batch.y, said(net, head, batch.x)).mean() for head in range(2))
    assert losses["supervised"].item() == pytest.approx(labelled, rel=1e-5)

    p1, p2 = (said(net, head, batch.weak[0]) for head in range(2))
    middle = (p1 + p2) / 2
    disagreement = (cross_entropy(middle, middle) - (cross_entropy(p1, p1) + cross_entropy(p2, p2)) / 2).mean()
    first, second = (said(net, head, everything(batch)) for head in range(2))
    against_first, against_second = (fooling(net, head, batch) for head in range(2))
    difference = np.mean(
        cross_entropy(second, said(net, 0, against_second)) + cross_entropy(first, said(net, 1, against_first))
    )
    assert losses["disagreement"].item() == pytest.approx(disagreement, rel=1e-4)
    assert losses["difference"].item() == pytest.approx(difference, rel=1e-3)
    assert unlabelled(losses).item() == pytest.approx(10 * disagreement + 0.5 * difference, rel=1e-3)
    assert METHOD.weight(0.13) == METHOD.weight(1) == 10
    early = DeepCoTraining(unsupervised_ramp=1).loss(a_learner(METHOD, net), batch)  # at half of the steps
    weights = {name: term.weight for name, term in early.terms.items()}
    risen = np.exp(-5 / 4)
    assert weights == pytest.approx({"supervised": 1, "disagreement": 10 * risen, "difference": 0.5 * risen})


def difference_gradients(soft_targets: str) -> list[list[Tensor]]:
    """Of each network, by the second network's resistance to what fools the first one, without the rest."""
    method = DeepCoTraining(soft_targets=soft_targets, unsupervised_weight=0)
    net, batch = a_net(method), a_batch(method)
    unlabelled(method.loss(a_learner(method, net), batch)).backward()
    return [[parameter.grad for parameter in head.parameters()] for head in net.heads]


def test_detached_targets_teach_only_the_network_that_is_attacked() -> None:
    method = DeepCoTraining(soft_targets="detached", unsupervised_weight=0)
    net, batch = a_net(method), a_batch(method)
    images = everything(batch)
    ours = difference_gradients("detached")
    for head in range(2):
        target = torch.from_numpy(said(net, 1 - head, images)).float()
        logits = net.heads[head](fooling(net, 1 - head, batch))
        expected = torch.autograd.grad(0.5 * F.cross_entropy(logits, target), list(net.heads[head].parameters()))
        for one, two in zip(ours[head], expected, strict=True):
            torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-4 * two.abs().max().item() + 1e-7)
    through = difference_gradients("gradient")
    assert not any(torch.allclose(one, two, rtol=1e-2) for one, two in zip(ours[0], through[0], strict=True))


def test_the_attack_is_made_in_eval_mode_and_the_other_passes_are_not() -> None:
    batch, net = a_batch(METHOD), a_net(METHOD).train()
    again = copy.deepcopy(net)
    METHOD.loss(a_learner(METHOD, net), batch)
    assert all(module.training for module in net.modules())
    logits = again(everything(batch))
    predicted = logits[:, 6:].argmax(-1)
    classes = torch.cat([batch.y.expand(2, -1), predicted], dim=1)
    adversarial = METHOD.attack(a_learner(METHOD, again.eval()), everything(batch), classes)
    again.train()
    for head, images in zip(again.heads, adversarial.flip(0), strict=True):
        head(images)
    for one, two in zip(statistics(net), statistics(again), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_the_attack_is_in_full_precision_also_where_the_run_is_not() -> None:
    net, batch = a_net(METHOD), a_batch(METHOD)
    classes = batch.y.expand(2, -1)
    plain = METHOD.attack(a_learner(METHOD, net), batch.x, classes)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(METHOD.attack(a_learner(METHOD, net), batch.x, classes), plain)


def test_both_networks_learn_from_every_term() -> None:
    for method in (DeepCoTraining(difference_weight=0), DeepCoTraining(unsupervised_weight=0)):
        net = a_net(method)
        unlabelled(method.loss(a_learner(method, net), a_batch(method))).backward()
        assert all(parameter.grad.any() for parameter in net.parameters())
