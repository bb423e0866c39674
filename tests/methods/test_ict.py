"""The loss against numpy with both kinds of target, and what is the teacher's."""

import numpy as np
import pytest
import torch

from cotrain.methods.ict import ICT
from cotrain.ops import batch_norms, beta
from cotrain.types import Learner, Views
from tests.methods.parts import (
    a_batch,
    a_learner,
    a_net,
    cross_entropy,
    probabilities,
    softmax,
    updated_by_labelled_images_alone,
)

METHOD = ICT()


def shares(method: ICT, learner: Learner, images: int) -> np.ndarray:
    """Those that the method is about to draw."""
    again = torch.Generator().manual_seed(learner.generator.initial_seed())
    drawn = beta(method.alpha, (images,), again).double().numpy()
    return np.maximum(drawn, 1 - drawn)


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_a_mixture_is_drawn_to_the_mixture_of_targets(kind: str) -> None:
    method = ICT(mix=kind)
    net, teacher, batch = a_net(method), a_net(method, seed=4), a_batch(method)
    learner = a_learner(method, net, teacher)
    share = shares(method, learner, 12)
    losses = method.loss(learner, batch)

    images = batch.weak[0].double().numpy()
    mixed = np.stack([share[i] * images[i] + (1 - share[i]) * images[11 - i] for i in range(12)])
    with torch.no_grad():
        logits = teacher(batch.weak[0])[0].double().numpy()
    said = softmax(logits) if kind == "probabilities" else logits
    targets = np.stack([share[i] * said[i] + (1 - share[i]) * said[11 - i] for i in range(12)])
    targets = targets if kind == "probabilities" else softmax(targets)
    student = probabilities(net, torch.from_numpy(mixed).float())
    assert losses["unsupervised"].item() == pytest.approx(np.mean((student - targets) ** 2), rel=1e-4)
    expected = cross_entropy(batch.y, probabilities(net, batch.x)).mean()
    assert losses["supervised"].item() == pytest.approx(expected, rel=1e-5)


def test_the_student_learns_and_the_teacher_does_not() -> None:
    net, teacher, batch = a_net(METHOD), a_net(METHOD, seed=4), a_batch(METHOD)
    losses = METHOD.loss(a_learner(METHOD, net, teacher), batch)
    losses.total.backward()
    assert all(parameter.grad.any() for parameter in net.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_no_gradient_reaches_the_images_through_the_target() -> None:
    """Each image is in two mixtures, its own and that of its opposite, and moves nothing else."""
    net, teacher, batch = a_net(METHOD), a_net(METHOD, seed=4), a_batch(METHOD)
    share = torch.from_numpy(shares(METHOD, a_learner(METHOD, net), 12)).float()[:, None]
    batch.weak.requires_grad_()
    METHOD.loss(a_learner(METHOD, net, teacher), batch)["unsupervised"].backward()
    (images,) = batch.weak.detach().clone().requires_grad_()
    images.retain_grad()
    taught = torch.from_numpy(probabilities(teacher, images.detach())).float()
    flat = images.flatten(1)
    mixed = (share * flat + (1 - share) * flat.flip(0)).view_as(images)
    (net(mixed)[0].softmax(-1) - (share * taught + (1 - share) * taught.flip(0))).square().mean().backward()
    torch.testing.assert_close(batch.weak.grad[0], images.grad, rtol=1e-3, atol=1e-7)


def test_only_labelled_images_update_batchnorm() -> None:
    assert updated_by_labelled_images_alone(METHOD)


def test_the_teacher_normalises_by_its_own_batch() -> None:
    """Whatever its running statistics are."""
    found = []
    for variance in (1, 100):
        net, teacher = a_net(METHOD).train(), a_net(METHOD, seed=4)
        for layer in batch_norms(teacher):
            layer.running_var.fill_(variance)
        found.append(METHOD.loss(a_learner(METHOD, net, teacher), a_batch(METHOD))["unsupervised"].item())
    assert found[0] == found[1] > 0


def test_processes_need_all_images_to_mix_them() -> None:
    assert METHOD.views == Views(weak=1, whole=True)
