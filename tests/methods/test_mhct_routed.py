"""Routed views: who learns from what, and the loss written out."""

import pytest
import torch
import torch.nn.functional as F

from cotrain.methods.mhct_routed import RoutedCoTraining
from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.types import Views
from tests.methods.parts import a_batch, a_learner, changed


def test_routing_sends_every_image_to_one_head_and_equally_many_to_each() -> None:
    method = RoutedCoTraining(heads=5)
    assert method.views == Views(weak=1, strong=1)
    routes = [method.route(23, torch.Generator().manual_seed(seed)) for seed in range(40)]
    for sent in routes:
        assert (sent.sum(dim=0) == 1).all()
        assert sent.sum(dim=1).max() - sent.sum(dim=1).min() == 1
    assert torch.equal(routes[0], method.route(23, torch.Generator().manual_seed(0)))
    assert len({tuple(sent.flatten().tolist()) for sent in routes}) == 40
    shares = torch.stack(routes).float().mean(dim=(0, 2))
    assert torch.allclose(shares, torch.full((5,), 0.2), atol=0.03), "no head is favoured over many steps"


@pytest.mark.parametrize("weak_pass", ["joint", "separate"])
@pytest.mark.parametrize("normaliser", ["selected", "batch"])
def test_routed_loss_is_the_mean_over_what_each_head_was_sent(weak_pass: str, normaliser: str) -> None:
    torch.manual_seed(3)
    net, batch = MultiHead.cut(wrn(10, 1, channels=3, classes=3), 3).eval(), a_batch(RoutedCoTraining(), 6, 30)
    method = RoutedCoTraining(weak_pass=weak_pass, normaliser=normaliser)
    losses = method.loss(a_learner(method, net), batch)

    labels, selected = method.pseudo_label(net(batch.weak[0]))
    strong, sent = net(batch.strong[0]), method.route(30, torch.Generator().manual_seed(1))
    assert 0 < (selected & sent).sum() < 30
    expected = 0.0
    for head in range(3):
        taught = [image for image in range(30) if sent[head, image] and selected[head, image]]
        terms = [F.cross_entropy(strong[head, image], labels[head, image]).item() for image in taught]
        expected += sum(terms) / (max(len(terms), 1) if normaliser == "selected" else 10) / 3
    assert losses["unsupervised"].item() == pytest.approx(expected, rel=1e-5)
    assert losses.monitors["agreement"].item() == pytest.approx(selected.float().mean().item())


def test_a_view_teaches_the_head_it_is_sent_to_and_no_other() -> None:
    torch.manual_seed(3)
    net, method = MultiHead.cut(wrn(10, 1, channels=3, classes=3), 3, head_init="copied").eval(), RoutedCoTraining()
    batch = a_batch(method, 6, 30)
    sent = method.route(30, torch.Generator().manual_seed(1))

    def gradients(strong: torch.Tensor) -> list[list[torch.Tensor]]:
        net.zero_grad()
        losses = method.loss(a_learner(method, net), changed(batch, strong=strong))
        assert losses.monitors["agreement"] == 1
        losses["unsupervised"].backward()
        return [[parameter.grad.clone() for parameter in head.parameters()] for head in net.heads]

    before = gradients(batch.strong)
    for head in range(3):
        strong = batch.strong.clone()
        strong[:, sent[head]] += 1.0
        after = gradients(strong)
        same = [all(map(torch.equal, before[other], after[other])) for other in range(3)]
        assert same == [other != head for other in range(3)]


def test_there_is_nothing_to_set_about_its_views() -> None:
    with pytest.raises(ValueError, match="shared"):
        RoutedCoTraining(strong_views="per_head")
