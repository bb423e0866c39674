"""The perturbation against many random ones, the loss against numpy, and what the probe must not touch."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cotrain.methods.vat import VAT, unit
from cotrain.types import Learner
from tests.methods.parts import (
    a_batch,
    a_learner,
    a_net,
    cross_entropy,
    gradients,
    probabilities,
    unlabelled,
    updated_by_labelled_images_alone,
)


class Recorded(nn.Module):
    """Remembers what the network was given, and whether it was to answer in half precision."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.images, self.halves = net, [], []

    def forward(self, images: Tensor) -> Tensor:
        self.images.append(images.detach())
        self.halves.append(torch.is_autocast_enabled("cpu"))
        with torch.autocast("cpu", enabled=False):
            return self.net(images)


def divergence(of: np.ndarray, against: np.ndarray) -> np.ndarray:
    return (of * (np.log(of) - np.log(against))).sum(axis=1)


@pytest.mark.parametrize("kl", ["paper", "reverse"])
def test_the_loss_is_the_divergence_and_the_entropy(kl: str) -> None:
    method = VAT(kl=kl, epsilon=4)
    net, batch = Recorded(a_net(method)), a_batch(method)
    losses = method.loss(a_learner(method, net, step=2), batch)
    _, clean, probe, perturbed = net.images
    assert torch.equal(clean, batch.weak[0])
    assert (probe - clean).flatten(1).norm(dim=1).tolist() == pytest.approx([1e-3] * 12, rel=1e-2)
    p, q = probabilities(net.net, clean), probabilities(net.net, perturbed)
    adversarial = (divergence(p, q) if kl == "paper" else divergence(q, p)).mean()
    entropy = cross_entropy(p, p).mean()
    assert unlabelled(losses).item() == pytest.approx(0.3 * 0.5 * adversarial + 0.06 * entropy, rel=1e-4)
    assert losses["adversarial"].item() == pytest.approx(adversarial, rel=1e-4)
    assert losses["entropy"].item() == pytest.approx(entropy, rel=1e-4)
    assert losses["supervised"].item() == pytest.approx(cross_entropy(batch.y, probabilities(net.net, batch.x)).mean())


@pytest.mark.parametrize(("channels", "norm"), [(3, 12 * 0.25), (1, 12 * (64 / 3072) ** 0.5)])
def test_the_perturbation_has_the_same_size_per_value(channels: int, norm: float) -> None:
    method = VAT()
    net, batch = a_net(method, channels=channels), a_batch(method, channels=channels)
    perturbation = method.perturbation(a_learner(method, net), batch.weak[0], net(batch.weak[0])[0].detach())
    assert perturbation.flatten(1).norm(dim=1).tolist() == pytest.approx([norm] * 12, rel=1e-4)


def test_it_hurts_more_than_any_of_many_random_directions() -> None:
    method = VAT(epsilon=0.4)
    net, batch = a_net(method).double(), a_batch(method)
    images = batch.weak[0].double()
    with torch.no_grad():
        clean = net(images)[0]
    worst = divergence_after(net, images, method.perturbation(a_learner(method, net), images, clean))
    rng = torch.Generator().manual_seed(5)
    for _ in range(50):
        direction = 0.1 * unit(torch.randn(images.shape, generator=rng, dtype=torch.float64))
        assert (divergence_after(net, images, direction) < worst).all()


def divergence_after(net: nn.Module, images: Tensor, perturbation: Tensor) -> np.ndarray:
    return divergence(probabilities(net, images), probabilities(net, images + perturbation))


def test_the_probe_leaves_no_gradient_and_the_target_gets_none() -> None:
    method = VAT(entropy_weight=0)
    net, batch = a_net(method), a_batch(method)
    batch.weak.requires_grad_()
    losses = method.loss(a_learner(method, net), batch)
    assert all(parameter.grad is None for parameter in net.parameters())
    recorded, constant = Recorded(net), a_batch(method)
    method.loss(a_learner(method, recorded), constant)
    target = net(constant.weak[0])[0].detach().softmax(-1)
    plain = 0.3 * nn.functional.kl_div(net(recorded.images[3])[0].log_softmax(-1), target, reduction="batchmean")
    for ours, expected in zip(gradients(unlabelled(losses), net), gradients(plain, net), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-6)


def test_the_entropy_reaches_the_clean_view_before_the_rise_begins() -> None:
    method = VAT()
    net, batch = a_net(method), a_batch(method)
    losses = method.loss(a_learner(method, net, step=0), batch)
    p = net(batch.weak[0])[0].softmax(-1)
    plain = -0.06 * (p * p.log()).sum(-1).mean()
    for ours, expected in zip(gradients(unlabelled(losses), net), gradients(plain, net), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-7)


def test_the_probe_is_in_full_precision_also_where_the_run_is_not() -> None:
    method = VAT()
    net, batch = Recorded(a_net(method)), a_batch(method)
    with torch.autocast("cpu", torch.bfloat16):
        losses = method.loss(a_learner(method, net), batch)
    assert net.halves == [True, False, False, True]
    plain = method.loss(a_learner(method, net), batch)
    assert torch.equal(unlabelled(losses), unlabelled(plain)), "nor is anything else rounded"


def test_the_same_generator_draws_the_same_probe() -> None:
    method = VAT()
    net, batch = a_net(method), a_batch(method)
    first, second = (unlabelled(method.loss(a_learner(method, net), batch)) for _ in range(2))
    other = Learner(net, net, 5, 10, torch.Generator().manual_seed(9), {})
    assert torch.equal(first, second)
    assert not torch.equal(first, unlabelled(method.loss(other, batch)))


def test_zero_has_no_direction() -> None:
    assert not unit(torch.zeros(2, 3, 4, 4)).any()


def test_only_labelled_images_update_batchnorm() -> None:
    assert updated_by_labelled_images_alone(VAT())
