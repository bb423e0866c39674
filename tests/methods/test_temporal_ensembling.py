"""The loss and the ensemble against numpy over several steps with images that come back."""

import math

import numpy as np
import pytest
import torch

from cotrain.methods.temporal_ensembling import TemporalEnsembling
from cotrain.types import Views, exponential_ramp
from tests.methods.parts import ROWS, a_batch, a_learner, a_net, changed, cross_entropy, probabilities

METHOD = TemporalEnsembling()


def test_three_steps_are_as_by_hand() -> None:
    """Each with other views; images are there twice in a batch, and in the labelled and the unlabelled part."""
    net, batch = a_net(METHOD), a_batch(METHOD)
    learner, rng = a_learner(METHOD, net), np.random.default_rng(0)
    ensemble, updates = np.zeros((ROWS, 3)), np.zeros(ROWS)
    for step in range(3):
        rows = np.concatenate([rng.choice(8, 6), rng.choice(20, 12)])
        assert len(np.unique(rows)) < len(rows)
        now = changed(
            batch,
            x=batch.x.roll(step, -1),
            weak=batch.weak.roll(step, -1),
            labelled_rows=torch.from_numpy(rows[:6]),
            unlabelled_rows=torch.from_numpy(rows[6:]),
        )
        losses = METHOD.loss(learner, now)
        said = probabilities(net, torch.cat([now.x, now.weak[0]]))
        squares = [
            np.sum((z - ensemble[row] / (1 - 0.6 ** updates[row])) ** 2) if updates[row] else 0.0
            for row, z in zip(rows, said, strict=True)
        ]
        assert losses["unsupervised"].item() == pytest.approx(sum(squares) / (18 * 3), rel=1e-5)
        assert losses["supervised"].item() == pytest.approx(cross_entropy(batch.y, said[:6]).mean(), rel=1e-5)
        for row in set(rows.tolist()):
            ensemble[row] = 0.6 * ensemble[row] + 0.4 * said[rows == row].mean(axis=0)
            updates[row] += 1
        assert np.allclose(learner.memory["ensemble"].numpy(), ensemble, atol=1e-6)
        assert learner.memory["updates"].tolist() == updates.tolist()


def test_what_was_never_seen_has_no_loss_and_a_constant_output_none_later() -> None:
    net, batch = a_net(METHOD), a_batch(METHOD)
    learner = a_learner(METHOD, net)
    first = METHOD.loss(learner, batch)
    assert first["unsupervised"].item() == 0 and first["unsupervised"].requires_grad
    assert first.monitors["known"] == 0
    for _ in range(3):
        again = METHOD.loss(learner, batch)
        assert again["unsupervised"].item() == pytest.approx(0, abs=1e-12), "the bias of the average is corrected"
        assert again.monitors["known"] == 1


def test_labelled_and_unlabelled_images_learn_and_the_memory_keeps_no_graph() -> None:
    net, batch = a_net(METHOD), a_batch(METHOD)
    learner = a_learner(METHOD, net)
    METHOD.loss(learner, changed(batch, x=batch.x.flip(-1), weak=batch.weak.flip(-1)))
    batch.x.requires_grad_()
    batch.weak.requires_grad_()
    METHOD.loss(learner, batch)["unsupervised"].backward()
    assert batch.x.grad.flatten(1).any(1).all()
    assert batch.weak.grad[0].flatten(1).any(1).all()
    assert not any(tensor.requires_grad for tensor in learner.memory.values())


def test_the_memory_is_changed_in_place() -> None:
    learner = a_learner(METHOD, a_net(METHOD))
    before = dict(learner.memory)
    METHOD.loss(learner, a_batch(METHOD))
    assert all(learner.memory[name] is tensor for name, tensor in before.items())
    assert learner.memory["updates"].sum() == 18


def test_the_weight_rises_as_the_authors_does() -> None:
    assert METHOD.views == Views(weak=1, every_pass=True)
    assert METHOD.weight(0) == pytest.approx(30 * math.exp(-5))
    assert METHOD.weight(0.135) == pytest.approx(30 * math.exp(-1.25))
    assert METHOD.weight(0.27) == METHOD.weight(1) == 30
    assert exponential_ramp(0, 0) == 1
