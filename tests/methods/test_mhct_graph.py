"""The vote with neighbours: what spreads over the graph, and how it changes the heads' votes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from cotrain import graph
from cotrain.graph import neighbour_graph
from cotrain.methods import mhct_graph
from cotrain.methods.mhct import MultiHeadCoTraining
from cotrain.methods.mhct_graph import GraphCoTraining
from cotrain.types import Pool
from tests.methods.parts import ROWS, a_batch, a_learner, a_net

METHOD = GraphCoTraining(neighbours=3)


class Points:
    """Looks at made-up features: of the trunk, or (M, n, C + D) outputs of the heads."""

    def __init__(self, features: Tensor | None = None, outputs: Tensor | None = None) -> None:
        self.of_trunk, self.of_heads = features, outputs

    def __call__(self, rows: Tensor, /) -> Tensor:
        assert self.of_heads is not None, "only the features of the trunk are needed"
        return self.of_heads[:, rows]

    def features(self, rows: Tensor, /) -> Tensor:
        assert self.of_trunk is not None, "only the outputs of the heads are needed"
        return self.of_trunk[rows]

    def graph(self, features: Tensor, neighbours: int, /) -> "csr_array":
        return neighbour_graph(features, neighbours)

    def upcoming(self) -> Tensor:
        return torch.arange(10, 30)


def two_groups(seed: int) -> Tensor:
    """(ROWS, 8): even rows are near one point, odd rows near another."""
    noise = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(seed))
    return 0.3 * noise + torch.where(torch.arange(ROWS) % 2 == 0, 3.0, -3.0)[:, None]


def spread_of(weights: Tensor | None) -> Tensor:
    rows = torch.arange(ROWS)
    learner = a_learner(METHOD, a_net(METHOD), step=0)
    METHOD.refresh(
        learner, Pool(rows[:3], torch.tensor([0, 1, 1]), rows, ROWS, 3, weights=weights), Points(two_groups(0))
    )
    return learner.memory["spread"]


def test_a_label_of_little_weight_spreads_little_and_yields_to_its_neighbours() -> None:
    """Row 2 is among the even rows, which are of class 0, but its label is 1."""
    trusted, doubted = spread_of(None), spread_of(torch.tensor([1.0, 1.0, 0.1]))
    assert trusted[2].tolist() == [0, 1, 0]
    assert doubted[2, 0] > 0.5
    assert doubted[4::2, 1].mean() < 0.5 * trusted[4::2, 1].mean()
    assert torch.equal(spread_of(torch.ones(3)), trusted)


@pytest.mark.parametrize("step", [0, 10])
def test_labels_spread_within_their_group_as_a_dense_solve_says(step: int) -> None:
    """Over the features of the trunk at first, then over what the three heads have learned."""
    rows, labels = torch.arange(ROWS), torch.tensor([0, 1])
    pool = Pool(rows[:2], labels, rows, ROWS, 3)
    learner = a_learner(METHOD, a_net(METHOD), step=step)
    if step == 0:
        features = two_groups(0)
        METHOD.refresh(learner, pool, Points(features))
        features = (features - features.mean(0)) / features.std(0)
    else:
        hidden = torch.stack([two_groups(0), 9 * two_groups(1), two_groups(2)])
        logits = torch.randn(3, ROWS, 3, generator=torch.Generator().manual_seed(3))
        METHOD.refresh(learner, pool, Points(outputs=torch.cat([logits, hidden], dim=2)))
        features = torch.cat([F.normalize(head, dim=1) for head in hidden], dim=1)
    spread = learner.memory["spread"]

    unit = F.normalize(features, dim=1).double().numpy()
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    kept = np.zeros_like(similarity)
    for row in range(ROWS):
        best = np.argsort(similarity[row])[-3:]
        kept[row, best] = np.maximum(similarity[row, best], 0)
    both = np.maximum(kept, kept.T)
    scale = 1 / np.sqrt(both.sum(axis=1))
    seeds = np.zeros((ROWS, 3))
    seeds[[0, 1], [0, 1]] = 1
    dense = np.linalg.solve(np.eye(ROWS) - METHOD.reach * scale[:, None] * both * scale, seeds)
    dense[:2] = seeds[:2]  # given labels stay
    reached = dense.sum(axis=1) > 1e-9
    assert np.allclose(spread[reached], (dense / dense.sum(axis=1, keepdims=True))[reached], atol=2e-3)
    assert (spread[reached].argmax(dim=1) == torch.arange(ROWS)[reached] % 2).all()


@pytest.mark.parametrize("weak_pass", ["joint", "separate"])
def test_each_vote_is_the_mean_of_head_and_graph(weak_pass: str) -> None:
    method = GraphCoTraining(weak_pass=weak_pass, graph_weight=0.4)
    net, batch = a_net(method), a_batch(method, 6, 30)
    spread = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(2)) ** 4
    spread /= spread.sum(dim=1, keepdim=True)
    spread[batch.unlabelled_rows[:5]] = 0  # no label reached these
    losses = method.loss(a_learner(method, net, spread=spread), batch)

    with torch.no_grad():
        weak, strong = net(batch.weak[0]).softmax(-1), net(batch.x, batch.strong)[:, 6:]
    votes = torch.empty(3, 30, dtype=torch.int64)
    for head in range(3):
        for image, row in enumerate(batch.unlabelled_rows.tolist()):
            heard = weak[head, image] if image < 5 else 0.6 * weak[head, image] + 0.4 * spread[row]
            votes[head, image] = heard.argmax()
    assert not torch.equal(votes, weak.argmax(-1)), "the neighbours change some votes"
    expected = 0.0
    for head in range(3):
        first, second = (votes[other] for other in range(3) if other != head)
        taught = (first == second).nonzero()[:, 0]
        assert 0 < len(taught) < 30
        expected += F.cross_entropy(strong[head, taught], first[taught]).item() / 3
    assert losses["unsupervised"].item() == pytest.approx(expected, rel=1e-5)


def test_without_weight_it_is_plain_co_training() -> None:
    method = GraphCoTraining(graph_weight=0.0)
    net, batch = a_net(method), a_batch(method, 6, 30)
    spread = torch.full((ROWS, 3), 1 / 3)
    ours = method.loss(a_learner(method, net, spread=spread), batch)
    plain = MultiHeadCoTraining().loss(a_learner(method, net), batch)
    assert ours.total.item() == pytest.approx(plain.total.item(), rel=1e-6)


def test_the_graph_is_made_as_often_as_asked() -> None:
    rows = torch.arange(ROWS)
    pool = Pool(rows[:2], rows[:2], rows, ROWS, 3)
    assert METHOD.refresh_steps(pool, 300, 64) == {0, 100, 200}
    assert GraphCoTraining(rounds=1).refresh_steps(pool, 300, 64) == {0}


@pytest.mark.parametrize("step", [0, 10])
def test_of_many_images_a_sample_makes_the_graph_and_those_of_the_next_steps_hear_it(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "LARGEST", ROWS - 1)
    monkeypatch.setattr(graph, "NODES", 16)
    rows = torch.arange(ROWS)
    pool = Pool(rows[:2], rows[:2], rows, ROWS, 3)
    learner = a_learner(METHOD, a_net(METHOD), step=step)
    logits, hidden = torch.zeros(3, ROWS, 3), two_groups(0).expand(3, -1, -1)
    METHOD.refresh(learner, pool, Points(two_groups(0), torch.cat([logits, hidden], dim=2)))
    spread = learner.memory["spread"]
    assert spread[:2].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert (spread[10:30].argmax(dim=1) == rows[10:30] % 2).all() and spread[10:30].any(dim=1).all()
    assert not spread[30:].any(), "these are not used before the next graph"


def test_given_labels_stay_if_there_are_more_than_the_graph_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LARGEST", ROWS - 1)
    monkeypatch.setattr(graph, "NODES", 12)
    rows = torch.arange(ROWS)
    pool = Pool(rows[:20], rows[:20] % 2, rows, ROWS, 3)
    learner = a_learner(METHOD, a_net(METHOD), step=0)
    METHOD.refresh(learner, pool, Points(two_groups(0)))
    assert torch.equal(learner.memory["spread"][:20], F.one_hot(pool.labels, 3).float())


def test_of_many_classes_the_likeliest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(torch.arange(2), torch.arange(2), torch.arange(ROWS), ROWS, 40)
    assert METHOD.init(pool)["spread"].shape == (ROWS, 40)
    monkeypatch.setattr(mhct_graph, "DENSE", 40 * ROWS - 1)
    memory = METHOD.init(pool)
    assert sum(tensor.nbytes for tensor in memory.values()) == ROWS * 16 * 8
    spread = torch.rand(3, 40, generator=torch.Generator().manual_seed(0))
    mhct_graph.keep(memory, torch.tensor([7, 0, 39]), spread)
    found = mhct_graph.kept(memory, torch.tensor([39, 7, 1]), 40)
    for row, values in ((0, spread[2]), (1, spread[0])):
        lowest = values.sort(descending=True).values[15]
        assert torch.equal(found[row], torch.where(values >= lowest, values, 0))
    assert not found[2].any()
