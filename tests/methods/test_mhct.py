"""Algorithm 1 against the worked example of the vote, against FixMatch, and where its gradients go."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.model import MultiHead
from cotrain.model.families.wrn import wrn
from cotrain.types import Batch, Learner, Views


class Replay(nn.Module):
    """Stands in for the network: gives prepared logits for labelled, weak and strong images."""

    def __init__(self, labelled: Tensor, weak: Tensor, strong: Tensor) -> None:
        super().__init__()
        self.labelled, self.weak = labelled, weak
        self.strong = nn.Parameter(strong)

    def forward(self, shared: Tensor, private: Tensor | None = None) -> Tensor:
        return torch.cat([self.labelled, self.weak, self.strong], dim=1)


def learner(net: nn.Module) -> Learner:
    return Learner(net, net, 0, 1, torch.Generator(), {})


def a_batch(heads: int, labelled: int, unlabelled: int, size: int = 8, seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return Batch(
        x=torch.randn(labelled, 3, size, size, generator=rng),
        y=torch.arange(labelled) % 3,
        labelled_rows=torch.arange(labelled),
        weak=torch.randn(1, unlabelled, 3, size, size, generator=rng),
        strong=torch.randn(heads, unlabelled, 3, size, size, generator=rng),
        unlabelled_rows=torch.arange(unlabelled),
    )


def replay(weak: Tensor, strong: Tensor | None = None) -> tuple[Replay, Batch]:
    heads, unlabelled, classes = weak.shape
    net = Replay(torch.zeros(heads, 2, classes), weak, torch.zeros_like(weak) if strong is None else strong)
    return net, a_batch(heads, 2, unlabelled)


ORACLE = F.one_hot(torch.tensor([[0, 1, 2, 0], [0, 1, 1, 1], [0, 2, 1, 2]]), 3).float()


def test_the_worked_example_selects_and_labels_as_written_down() -> None:
    labels, selected = MultiHeadCoTraining().pseudo_label(ORACLE)
    assert selected.int().tolist() == [[1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert labels[selected].tolist() == [0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("normaliser", "reduction", "expected"),
    [("selected", "mean", math.log(3)), ("batch", "sum", 5 / 4 * math.log(3))],
    ids=["paper", "released code"],
)
def test_the_worked_example_costs_what_it_should(normaliser: str, reduction: str, expected: float) -> None:
    method = MultiHeadCoTraining(normaliser=normaliser, reduction=reduction, weak_pass="joint")
    losses = method.loss(learner(replay(ORACLE)[0]), replay(ORACLE)[1])
    assert losses["unsupervised"].item() == pytest.approx(expected, rel=1e-6)
    assert losses["supervised"].item() == pytest.approx(3 * math.log(3), rel=1e-6)
    assert losses.monitors["agreement"].item() == pytest.approx(5 / 12)


@pytest.mark.parametrize("heads", range(3, 8))
def test_a_vote_needs_more_than_half_of_all_heads(heads: int) -> None:
    rng = torch.Generator().manual_seed(heads)
    predicted = torch.randint(3, (heads, 400), generator=rng)
    labels, selected = MultiHeadCoTraining(heads=heads).pseudo_label(F.one_hot(predicted, 3).float())
    for head in range(heads):
        for example in range(400):
            others = [predicted[other, example].item() for other in range(heads) if other != head]
            winners = [label for label in range(3) if others.count(label) > heads / 2]
            assert selected[head, example] == bool(winners)
            if winners:
                assert labels[head, example] == winners[0]


def test_two_heads_are_taught_by_the_confidence_of_the_other() -> None:
    sure, unsure = [9.0, 0.0], [0.3, 0.0]
    weak = torch.tensor([[sure, unsure], [unsure[::-1], sure[::-1]]])
    labels, selected = MultiHeadCoTraining(heads=2).pseudo_label(weak)
    assert selected.tolist() == [[False, True], [True, False]]
    assert labels[0, 1] == 1
    assert labels[1, 0] == 0


def test_one_head_is_fixmatch() -> None:
    torch.manual_seed(0)
    net = MultiHead.cut(wrn(10, 1, channels=3, classes=3), 1)
    batch = a_batch(1, 6, 40)
    method = MultiHeadCoTraining(heads=1, normaliser="batch", reduction="sum", weak_pass="joint", threshold=0.4)
    losses = method.loss(learner(net), batch)

    logits = net(torch.cat([batch.x, batch.weak[0], batch.strong[0]]))[0]
    labelled, weak, strong = logits.split([6, 40, 40])
    confidence, pseudo = weak.softmax(-1).max(-1)
    mask = confidence >= 0.4
    assert 0 < mask.sum() < 40
    fixmatch = (F.cross_entropy(strong, pseudo, reduction="none") * mask).mean()
    assert losses["supervised"].item() == pytest.approx(F.cross_entropy(labelled, batch.y).item(), rel=1e-6)
    assert losses["unsupervised"].item() == pytest.approx(fixmatch.item(), rel=1e-6)


def test_presets_differ_threefold_when_everything_is_selected() -> None:
    agreed = F.one_hot(torch.tensor([[0, 1, 2, 1]] * 3), 3).float()
    strong = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(1))
    net, batch = replay(agreed, strong)
    paper = MultiHeadCoTraining(weak_pass="joint").loss(learner(net), batch)
    code = MultiHeadCoTraining(weak_pass="joint", normaliser="batch", reduction="sum").loss(learner(net), batch)
    assert paper["supervised"].item() == code["supervised"].item()
    assert code["unsupervised"].item() == pytest.approx(3 * paper["unsupervised"].item(), rel=1e-6)


@pytest.mark.parametrize("normaliser", ["selected", "batch"])
def test_nothing_selected_is_zero_loss_and_zero_gradient(normaliser: str) -> None:
    everyone_differs = F.one_hot(torch.tensor([[0] * 5, [1] * 5, [2] * 5]), 3).float()
    net, batch = replay(everyone_differs)
    losses = MultiHeadCoTraining(weak_pass="joint", normaliser=normaliser).loss(learner(net), batch)
    losses["unsupervised"].backward()
    assert losses["unsupervised"].item() == 0
    assert torch.equal(net.strong.grad, torch.zeros_like(net.strong))


def frozen_net() -> MultiHead:
    """Batch-norm frozen, so that images of one batch do not see each other; equal heads, so that all are selected."""
    torch.manual_seed(3)
    return MultiHead.cut(wrn(10, 1, channels=3, classes=3), 3, head_init="copied").eval()


@pytest.mark.parametrize("weak_pass", ["joint", "separate"])
def test_a_strong_view_teaches_its_own_head_and_no_other(weak_pass: str) -> None:
    net, batch = frozen_net(), a_batch(3, 6, 30)
    batch.strong.requires_grad_()
    method = MultiHeadCoTraining(weak_pass=weak_pass)
    _, _, strong = method.predict(net, batch)
    for head in range(3):
        (gradient,) = torch.autograd.grad(strong[head].square().sum(), batch.strong, retain_graph=True)
        reached = gradient.flatten(1).abs().sum(1) > 0
        assert reached.tolist() == [view == head for view in range(3)]

    for head in range(3):
        changed = batch.strong.detach().clone()
        changed[head] += 1.0
        before = head_gradients(net, method, batch)
        after = head_gradients(net, method, Batch(**{**vars(batch), "strong": changed}))
        same = [all(map(torch.equal, before[other], after[other])) for other in range(3)]
        assert same == [other != head for other in range(3)]


def head_gradients(net: MultiHead, method: MultiHeadCoTraining, batch: Batch) -> list[list[Tensor]]:
    net.zero_grad()
    losses = method.loss(learner(net), batch)
    assert losses.monitors["agreement"] == 1
    losses.total.backward()
    return [[parameter.grad.clone() for parameter in head.parameters()] for head in net.heads]


def test_no_gradient_flows_through_the_pseudo_labels() -> None:
    net, batch = frozen_net(), a_batch(3, 6, 30)
    batch.weak.requires_grad_()
    batch.strong.requires_grad_()
    MultiHeadCoTraining(weak_pass="joint").loss(learner(net), batch)["unsupervised"].backward()
    assert batch.weak.grad is None or not batch.weak.grad.any()
    assert batch.strong.grad.any()


def test_joint_and_separate_weak_passes_agree_only_while_batchnorm_is_frozen() -> None:
    net, batch = frozen_net(), a_batch(3, 6, 30)
    joint, separate = MultiHeadCoTraining(weak_pass="joint"), MultiHeadCoTraining(weak_pass="separate")
    frozen = [method.loss(learner(net), batch)["unsupervised"].item() for method in (joint, separate)]
    assert frozen[0] == pytest.approx(frozen[1], rel=1e-5)
    net.train()
    live = [method.loss(learner(net), batch)["unsupervised"].item() for method in (joint, separate)]
    assert live[0] != pytest.approx(live[1], rel=1e-3)


def test_a_shared_strong_view_reaches_every_head() -> None:
    net, batch = frozen_net(), a_batch(1, 6, 30)
    method = MultiHeadCoTraining(strong_views="shared")
    assert method.views == Views(weak=1, strong=1)
    _, _, strong = method.predict(net, batch)
    assert torch.allclose(strong, net(batch.strong[0]), atol=1e-5)


def test_views_follow_the_settings() -> None:
    assert MultiHeadCoTraining(heads=5).views == Views(weak=1, strong=5)
    assert MultiHeadCoTraining(weak_augment=False).views == Views(weak=1, strong=3, weak_augment=False)
