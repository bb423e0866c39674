"""The loss against numpy, and what is the teacher's."""

import numpy as np
import pytest

from cotrain.methods.mean_teacher import MeanTeacher
from tests.methods.parts import (
    a_batch,
    a_learner,
    a_net,
    cross_entropy,
    probabilities,
    updated_by_labelled_images_alone,
)

METHOD = MeanTeacher()


def test_it_is_the_mean_square_between_teacher_and_student() -> None:
    net, teacher, batch = a_net(METHOD), a_net(METHOD, seed=4), a_batch(METHOD)
    losses = METHOD.loss(a_learner(METHOD, net, teacher), batch)
    taught, said = probabilities(teacher, batch.weak[0]), probabilities(net, batch.weak[1])
    assert losses["unsupervised"].item() == pytest.approx(np.mean((taught - said) ** 2), rel=1e-5)
    expected = cross_entropy(batch.y, probabilities(net, batch.x)).mean()
    assert losses["supervised"].item() == pytest.approx(expected, rel=1e-5)


def test_the_student_learns_and_the_teacher_does_not() -> None:
    net, teacher, batch = a_net(METHOD), a_net(METHOD, seed=4), a_batch(METHOD)
    batch.weak.requires_grad_()
    losses = METHOD.loss(a_learner(METHOD, net, teacher), batch)
    losses.total.backward()
    assert all(parameter.grad.any() for parameter in net.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not batch.weak.grad[0].any()
    assert batch.weak.grad[1].flatten(1).any(1).all()


def test_teacher_and_student_normalise_by_their_own_batch() -> None:
    """With the same weights and the same view there is nothing to learn, whatever the running statistics are."""
    net, teacher, batch = a_net(METHOD).train(), a_net(METHOD), a_batch(METHOD)
    batch.weak[1] = batch.weak[0]
    assert METHOD.loss(a_learner(METHOD, net, teacher), batch)["unsupervised"].item() == 0


def test_only_labelled_images_update_batchnorm() -> None:
    assert updated_by_labelled_images_alone(METHOD)


def test_its_weight_is_reached_after_two_fifths() -> None:
    assert [METHOD.weight(progress) for progress in (0, 0.2, 0.4, 1)] == [0, 25, 50, 50]
