"""Losses, pseudo-labels, bank and queue over several steps against numpy with lists, and where gradients go."""

import numpy as np
import pytest
import torch

from cotrain.methods.comatch import CoMatch
from cotrain.model import MultiHead
from cotrain.types import Views
from tests.methods.parts import a_batch, a_learner, a_net, changed, cross_entropy, gradients, softmax, unlabelled

SMALL = CoMatch(bank=40, batches=3, threshold=0.7, graph_threshold=0.4)


def a_surer_net() -> MultiHead:
    """Predictions that remain sure of a class when they are aligned."""
    net = a_net(SMALL)
    net.heads[0][-1].fc.weight.data *= 4
    return net


def outputs(net: MultiHead, images: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and embeddings."""
    with torch.no_grad():
        both = net(images, extra=True)[0].double().numpy()
    embeddings = both[:, 3:]
    return softmax(both[:, :3]), embeddings / np.sqrt((embeddings**2).sum(axis=1, keepdims=True))


def test_six_steps_are_as_by_hand() -> None:
    """18 images a step: the bank of 40 is full after three, and then its oldest go first."""
    net, batch = a_surer_net(), a_batch(SMALL)
    learner = a_learner(SMALL, net)
    means, bank = [], []
    for step in range(6):
        now = changed(
            batch, x=batch.x.roll(step, -1), weak=batch.weak.roll(step, -1), strong=batch.strong.roll(step, -1)
        )
        losses = SMALL.loss(learner, now)

        weak, of_weak = outputs(net, now.weak[0])
        means.append(weak.mean(axis=0))
        aligned = weak / np.mean(means[-3:], axis=0)
        aligned /= aligned.sum(axis=1, keepdims=True)
        pseudo = aligned.copy()
        if len(bank) >= 40:
            kept, likely = (np.stack(part) for part in zip(*bank[-40:], strict=True))
            pseudo = 0.9 * aligned + 0.1 * softmax(of_weak @ kept.T / 0.2) @ likely
            assert not np.allclose(pseudo, aligned, atol=1e-3)
        labelled, of_labelled = outputs(net, now.x)
        bank += zip(of_weak, aligned, strict=True)
        bank += zip(of_labelled, np.eye(3)[now.y.numpy()], strict=True)

        first, of_first = outputs(net, now.strong[0])
        _, of_second = outputs(net, now.strong[1])
        sure = pseudo.max(axis=1) >= 0.7
        assert 0 < sure.sum() < 12
        classified = (cross_entropy(pseudo, first) * sure).mean()
        contrast = 0.0
        alike = softmax(of_first @ of_second.T / 0.2)
        for one in range(12):
            row = np.array([1.0 if one == other else pseudo[one] @ pseudo[other] for other in range(12)])
            row[row < 0.4] = 0
            contrast -= (row / row.sum() * np.log(alike[one] + 1e-7)).sum() / 12
        assert losses["pseudo_label"].item() == pytest.approx(classified, rel=1e-4)
        assert losses["contrast"].item() == pytest.approx(contrast, rel=1e-4)
        assert losses["supervised"].item() == pytest.approx(cross_entropy(now.y, labelled).mean(), rel=1e-4)
        assert losses.monitors["selected"].item() == pytest.approx(sure.mean())
    assert learner.memory["images"].item() == 6 * 18
    held = sorted(map(tuple, learner.memory["embeddings"].double().numpy().round(4).tolist()))
    expected = sorted(tuple(embedding.round(4).tolist()) for embedding, _ in bank[-40:])
    assert np.allclose(held, expected, atol=2e-4)


def test_the_graph_has_neighbours_above_the_threshold_only() -> None:
    pseudo = torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0], [0.5, 0.5, 0]])
    graph = CoMatch().graph(pseudo)
    assert torch.allclose(graph, torch.tensor([[1 / 1.9, 0.9 / 1.9, 0], [0.9 / 1.9, 1 / 1.9, 0], [0, 0, 1]]))


def test_alignment_is_the_identity_on_uniform_predictions_and_finite_without_a_class() -> None:
    method = CoMatch()
    learner = a_learner(method, a_net(method))
    uniform = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    assert torch.allclose(method.align(learner.memory, uniform), uniform)
    learner = a_learner(method, a_net(method))
    without = method.align(learner.memory, torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert without.isfinite().all()
    assert without.sum(dim=1).tolist() == pytest.approx([1, 1])


def test_a_batch_larger_than_the_bank_leaves_its_last_images() -> None:
    method = CoMatch(bank=4, dimensions=2)
    memory = a_learner(method, a_net(method)).memory
    method.remember(memory, torch.arange(12.0).view(6, 2), torch.zeros(6, 3))
    assert memory["embeddings"][:, 0].tolist() == [4, 6, 8, 10]


def test_strong_views_learn_and_pseudo_labels_do_not() -> None:
    net, batch = a_surer_net(), a_batch(SMALL)
    learner = a_learner(SMALL, net)
    for _ in range(3):
        SMALL.loss(learner, batch)
    batch.weak.requires_grad_()
    batch.strong.requires_grad_()
    losses = SMALL.loss(learner, batch)
    assert all(gradient.any() for gradient in gradients(unlabelled(losses), net))
    losses = SMALL.loss(learner, batch)
    unlabelled(losses).backward()
    assert not batch.weak.grad.any()
    assert batch.strong.grad.flatten(2).any(2).all()
    assert not any(tensor.requires_grad for tensor in learner.memory.values())


def test_nothing_selected_leaves_the_contrast_alone() -> None:
    method = CoMatch(threshold=1, contrast_weight=0)
    net = a_net(method)
    losses = method.loss(a_learner(method, net), a_batch(method))
    assert unlabelled(losses).item() == 0
    assert losses["contrast"] > 0
    assert not any(gradient.any() for gradient in gradients(unlabelled(losses), net))


def test_likeness_is_computed_in_full_precision_also_where_the_run_is_not() -> None:
    said = a_net(SMALL)(torch.cat([a_batch(SMALL).x, a_batch(SMALL).weak[0], *a_batch(SMALL).strong]), extra=True)

    class Replay(torch.nn.Module):
        def forward(self, images: torch.Tensor, extra: bool) -> torch.Tensor:
            return said

    plain = SMALL.loss(a_learner(SMALL, Replay()), a_batch(SMALL))
    with torch.autocast("cpu", torch.bfloat16):
        losses = SMALL.loss(a_learner(SMALL, Replay()), a_batch(SMALL))
    assert torch.equal(unlabelled(losses), unlabelled(plain))
    assert torch.equal(losses["supervised"], plain["supervised"])


def test_views_and_weights() -> None:
    assert CoMatch().views == Views(weak=1, strong=2)
    net, batch = a_surer_net(), a_batch(SMALL)
    parts = [CoMatch(unsupervised_weight=a, contrast_weight=b, threshold=0.5) for a, b in ((1, 0), (0, 1), (2, 3))]
    one, two, both = (unlabelled(method.loss(a_learner(method, net), batch)).item() for method in parts)
    assert one > 0
    assert both == pytest.approx(2 * one + 3 * two, rel=1e-5)
    rising = CoMatch(unsupervised_weight=2, contrast_weight=3, threshold=0.5, unsupervised_ramp=0.8)
    half = unlabelled(rising.loss(a_learner(rising, net, step=4), batch)).item()
    assert half == pytest.approx(both / 2, rel=1e-5), "both terms rise, here 0.4 of 0.8"
