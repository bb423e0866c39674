"""The loss against numpy, and which of its three passes does what."""

import numpy as np
import pytest

from cotrain.methods.pi_model import PiModel
from tests.methods.parts import (
    a_batch,
    a_learner,
    a_net,
    cross_entropy,
    probabilities,
    updated_by_labelled_images_alone,
)

METHOD = PiModel()


def test_it_is_the_mean_square_between_two_views() -> None:
    net, batch = a_net(METHOD), a_batch(METHOD)
    losses = METHOD.loss(a_learner(METHOD, net), batch)
    first, second = probabilities(net, batch.weak[0]), probabilities(net, batch.weak[1])
    assert losses["unsupervised"].item() == pytest.approx(np.mean((first - second) ** 2), rel=1e-5)
    expected = cross_entropy(batch.y, probabilities(net, batch.x)).mean()
    assert losses["supervised"].item() == pytest.approx(expected, rel=1e-5)


def test_the_first_view_is_a_target_and_the_second_learns() -> None:
    net, batch = a_net(METHOD), a_batch(METHOD)
    batch.weak.requires_grad_()
    METHOD.loss(a_learner(METHOD, net), batch)["unsupervised"].backward()
    assert not batch.weak.grad[0].any()
    assert batch.weak.grad[1].flatten(1).any(1).all()
    assert all(parameter.grad.any() for parameter in net.parameters())


def test_equal_views_cost_nothing_as_each_pass_has_its_own_statistics() -> None:
    """Live batch-norm: in one joint batch with the labelled images the two passes would not be equal."""
    net, batch = a_net(METHOD).train(), a_batch(METHOD)
    batch.weak[1] = batch.weak[0]
    assert METHOD.loss(a_learner(METHOD, net), batch)["unsupervised"].item() == 0


def test_only_labelled_images_update_batchnorm() -> None:
    assert updated_by_labelled_images_alone(METHOD)


def test_its_weight_is_reached_after_two_fifths() -> None:
    assert [METHOD.weight(progress) for progress in (0, 0.2, 0.4, 1)] == [0, 5, 10, 10]
