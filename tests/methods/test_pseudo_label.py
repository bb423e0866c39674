"""The loss against numpy with both masks, and which of its two passes does what."""

import numpy as np
import pytest
import torch

from cotrain.methods.pseudo_label import PseudoLabel
from tests.methods.parts import (
    a_batch,
    a_learner,
    a_net,
    cross_entropy,
    probabilities,
    updated_by_labelled_images_alone,
)


@pytest.mark.parametrize("mask", ["example", "outer"])
def test_the_loss_is_that_of_the_sure_images(mask: str) -> None:
    method = PseudoLabel(mask=mask, threshold=0.5)
    net, batch = a_net(method), a_batch(method)
    losses = method.loss(a_learner(method, net), batch)
    predicted = probabilities(net, batch.weak[0])
    sure = predicted.max(axis=1) > 0.5
    assert 0 < sure.sum() < len(sure)
    own = -np.log(predicted.max(axis=1))
    expected = own[sure].sum() / len(sure) if mask == "example" else np.mean(np.outer(sure, own))
    assert losses["unsupervised"].item() == pytest.approx(expected, rel=1e-5)
    assert losses.monitors["selected"].item() == pytest.approx(sure.mean())
    supervised = cross_entropy(batch.y, probabilities(net, batch.x)).mean()
    assert losses["supervised"].item() == pytest.approx(supervised, rel=1e-5)


def test_the_masks_agree_when_all_or_none_are_selected_and_differ_otherwise() -> None:
    def both(threshold: float) -> tuple[float, float]:
        example, outer = (PseudoLabel(mask=mask, threshold=threshold) for mask in ("example", "outer"))
        net, batch = a_net(example), a_batch(example)
        return tuple(m.loss(a_learner(m, net), batch)["unsupervised"].item() for m in (example, outer))

    assert both(0.0)[0] == pytest.approx(both(0.0)[1], rel=1e-6)
    assert both(1.0) == (0, 0)
    assert both(0.5)[0] != pytest.approx(both(0.5)[1], rel=0.05)


def test_an_image_learns_from_its_own_pass_only_if_it_is_sure() -> None:
    method = PseudoLabel(threshold=0.5)
    net, batch = a_net(method), a_batch(method)
    batch.weak.requires_grad_()
    method.loss(a_learner(method, net), batch)["unsupervised"].backward()
    sure = probabilities(net, batch.weak[0].detach()).max(axis=1) > 0.5
    assert batch.weak.grad[0].flatten(1).any(1).tolist() == sure.tolist()


def test_a_confidence_equal_to_the_threshold_is_not_enough() -> None:
    method = PseudoLabel(threshold=1 / 2)
    net, batch = a_net(method, classes=2), a_batch(method, classes=2)
    for parameter in net.parameters():
        parameter.data.zero_()
    losses = method.loss(a_learner(method, net), batch)
    assert losses.monitors["selected"] == 0
    assert losses["unsupervised"].item() == 0 and losses["unsupervised"].requires_grad
    assert torch.isfinite(losses["supervised"])


def test_only_labelled_images_update_batchnorm() -> None:
    assert updated_by_labelled_images_alone(PseudoLabel())
