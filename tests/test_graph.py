"""The graph against brute force, propagation against a dense solve, and what happens at the edges."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from cotrain import graph
from cotrain.graph import Graphs, aligned, attached, divided, nearest, neighbour_graph, propagate


def points(rows: int = 200, seed: int = 0) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))


def dense_graph(features: Tensor, k: int) -> np.ndarray:
    unit = features.double().numpy()
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    cosine = unit @ unit.T
    directed = np.zeros_like(cosine)
    for row in range(len(cosine)):
        others = sorted((other for other in range(len(cosine)) if other != row), key=lambda other: -cosine[row, other])
        for other in others[:k]:
            directed[row, other] = max(0, cosine[row, other])
    both = np.maximum(directed, directed.T)
    degree = both.sum(1)
    return both / np.sqrt(np.outer(degree, degree))


@pytest.mark.parametrize("block", [1 << 24, 1000, 1])
def test_neighbours_are_scikit_learns_however_many_are_compared_at_once(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "BLOCK", block)
    unit = torch.nn.functional.normalize(points(), dim=1)
    similarity, places = nearest(unit, 50)
    distances, expected = NearestNeighbors(n_neighbors=51, metric="cosine", algorithm="brute").fit(unit).kneighbors()
    assert np.array_equal(places.numpy(), expected[:, :50])
    assert np.allclose(similarity.numpy(), 1 - distances[:, :50], atol=1e-5)


@pytest.mark.parametrize("k", [3, 50])
def test_the_graph_is_the_dense_one(k: int) -> None:
    sparse = neighbour_graph(points(), k)
    assert np.allclose(sparse.toarray(), dense_graph(points(), k), atol=1e-6)
    assert not sparse.diagonal().any()
    assert sparse.nnz <= 2 * 200 * k


def test_features_are_compared_by_direction() -> None:
    scales = torch.linspace(0.1, 9, 200)[:, None]
    assert np.allclose(neighbour_graph(points() * scales, 5).toarray(), neighbour_graph(points(), 5).toarray())


def test_propagation_is_the_dense_solve() -> None:
    seeds = np.zeros((200, 3))
    seeds[np.arange(12), np.arange(12) % 3] = 1
    ours = propagate(neighbour_graph(points(), 10), seeds, iterations=2000, tolerance=1e-12)
    solved = np.linalg.solve(np.eye(200) - 0.99 * dense_graph(points(), 10), seeds)
    expected = np.maximum(solved, 0) / np.maximum(solved, 0).sum(1, keepdims=True)
    assert np.allclose(ours, expected, atol=1e-5)
    few = propagate(neighbour_graph(points(), 10), seeds)
    assert np.isfinite(few).all() and (few >= 0).all()
    assert (few.argmax(1) == expected.argmax(1)).mean() > 0.9


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_fewer_images_than_neighbours_are_all_neighbours(rows: int) -> None:
    features = points(rows).abs()
    places = nearest(features, 50)[1]
    assert places.shape == (rows, rows - 1)
    assert all(row not in places[row] for row in range(rows))
    seeds = np.eye(rows, 2)
    assert np.isfinite(propagate(neighbour_graph(features, 50), seeds)).all()


def test_what_no_label_reaches_has_no_class_and_breaks_nothing() -> None:
    """Two groups and two loners, all at right angles or opposed to each other; only the first group has labels."""
    features = torch.tensor([[1.0, 0, 0], [1, 0.1, 0], [0.9, 0.1, 0], [0, 0, 1], [0, 0, 0.8], [-1, -1, -1], [0, 0, 0]])
    seeds = np.zeros((7, 2))
    seeds[0, 1] = 1
    with np.errstate(all="raise"):
        spread = propagate(neighbour_graph(features, 2), seeds)
    assert spread[:3].argmax(1).tolist() == [1, 1, 1]
    assert not spread[3:].any()


def test_alignment_moves_the_shares_towards_those_of_the_labels() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([4, 3, 3], 500)
    shares = np.array([0.2, 0.4, 0.4])

    def distance(values: np.ndarray) -> float:
        return np.abs(np.bincount(values.argmax(1), minlength=3) / 500 - shares).sum()

    result = aligned(probabilities, shares)
    assert distance(result) < 0.1 * distance(probabilities)
    assert np.allclose(result.sum(1), 1)

    expected = probabilities.copy()
    for _ in range(100):
        counts = [sum(row.argmax() == label for row in expected) / 500 for label in range(3)]
        for label in range(3):
            expected[:, label] *= min(max(shares[label] / (counts[label] + 1e-7), 0.99), 1.01)
        expected /= expected.sum(1, keepdims=True)
    assert np.allclose(result, expected)


def test_alignment_of_classes_that_nobody_predicts_and_of_no_images_is_finite() -> None:
    certain = np.tile([1.0, 0, 0], (5, 1))
    with np.errstate(all="raise"):
        assert np.array_equal(aligned(certain, np.array([0, 0.5, 0.5])), certain)
        assert aligned(np.zeros((0, 3)), np.full(3, 1 / 3)).shape == (0, 3)


def test_a_kept_graph_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = Graphs()
    first = graphs.of(points(seed=5), 4)
    expected = first.toarray()
    assert np.array_equal(expected, neighbour_graph(points(seed=5), 4).toarray())
    first.data[:] = 0  # a caller's copy
    calls: list[int] = []
    monkeypatch.setattr(graph, "nearest", lambda unit, k: calls.append(k) or nearest(unit, k))
    assert np.array_equal(graphs.of(points(seed=5), 4).toarray(), expected)
    assert calls == []
    graphs.of(points(seed=5), 3)
    graphs.of(points(seed=6), 3)
    assert calls == [3, 3], "other features or another k make another graph"
    graphs.of(points(seed=5), 4)
    assert calls == [3, 3, 4], "the last two are kept"


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_few_rows_are_all_in_the_graph() -> None:
    rows = torch.arange(3, 50_003)
    nodes, others = divided(rows, rows[:4], lambda: pytest.fail("not needed"), drawn())
    assert torch.equal(nodes, rows) and len(others) == 0


@pytest.mark.parametrize(("labels", "wanted"), [(5, 30), (5, 300), (90, 300), (90, 0)])
def test_many_rows_are_sampled_labelled_and_wanted_ones_first(
    labels: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "LARGEST", 999)
    monkeypatch.setattr(graph, "NODES", 100)
    rows, needed = torch.arange(1000) * 2, torch.arange(400, 400 + wanted) * 2
    nodes, others = divided(rows, rows[:labels], lambda: needed, drawn())
    assert len(nodes) == 100 and torch.equal(nodes, nodes.unique()) and torch.isin(nodes, rows).all()
    assert torch.isin(nodes, rows[:labels]).sum() >= min(labels, 50)
    assert torch.isin(nodes, needed).sum() >= min(wanted, 50)
    assert torch.equal(torch.cat([nodes[torch.isin(nodes, needed)], others]).sort().values, needed)
    assert torch.equal(nodes, divided(rows, rows[:labels], lambda: needed, drawn())[0])
    assert not torch.equal(nodes, divided(rows, rows[:labels], lambda: needed, drawn(1))[0])


def test_other_rows_take_what_reached_their_nearest_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, others = points(30), points(20, seed=1) * torch.linspace(0.1, 9, 20)[:, None]
    spread = torch.rand(30, 3, generator=drawn())
    spread[::3] = 0
    monkeypatch.setattr(graph, "AT_ONCE", 7)

    def found_by(nodes: Tensor, spread: Tensor) -> Tensor:
        parts = [*attached(torch.arange(20), lambda rows: others[rows], nodes, spread, 4)]
        assert torch.equal(torch.cat([rows for rows, _ in parts]), torch.arange(20))
        return torch.cat([values for _, values in parts])

    found = found_by(nodes, spread)
    for row, features in enumerate(others):
        cosine = torch.nn.functional.cosine_similarity(features[None], nodes)
        expected = sum(max(0, cosine[node]) * spread[node] for node in cosine.argsort(descending=True)[:4])
        assert torch.allclose(found[row], expected / expected.sum(), atol=1e-5)
    assert not found_by(nodes, torch.zeros(30, 3)).any(), "zeros, not NaN, where nothing arrived"
    assert found_by(nodes[:2], spread[:2]).shape == (20, 3), "fewer nodes than neighbours"
