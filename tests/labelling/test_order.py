"""The order of the questions: clusters first, doubt later, no near-duplicates, and nothing that was asked before."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from cotrain.labelling import order
from cotrain.labelling.order import Space, most_informative, representatives, space_of
from tests.labelling.learned import a_page_model, answered

SIZES = (40, 25, 15, 8)


def space(points: NDArray[np.floating], reach: float = 0.3) -> Space:
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    return Space(np.arange(len(points)) * 2, unit.astype(np.float32), reach)  # every second row of a dataset


def blobs(spread: float = 0.03) -> tuple[Space, NDArray[np.int64]]:
    """Clusters of different sizes, far from each other, in mixed order."""
    rng = np.random.default_rng(0)
    members = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    return space(np.eye(len(SIZES))[members] + spread * rng.normal(size=(len(members), len(SIZES)))), members


Choose = Callable[[Space, set[int], int], list[int]]


def by_clusters(points: Space, asked: set[int], count: int) -> list[int]:
    return representatives(points, asked, count, seed=0)


def by_coverage(points: Space, asked: set[int], count: int) -> list[int]:
    return most_informative(points, None, asked, count)


@pytest.mark.parametrize("choose", [by_clusters, by_coverage])
def test_the_first_questions_stand_for_the_clusters_the_largest_first(choose: Choose) -> None:
    points, members = blobs()
    asked = choose(points, set(), len(SIZES))
    assert members[np.array(asked) // 2].tolist() == [0, 1, 2, 3]
    for row in asked:  # each is near the centre of its cluster: nearer than half of the others
        own = points.points[members == members[row // 2]]
        distances = np.linalg.norm(own - own.mean(axis=0), axis=1)
        assert np.linalg.norm(points.points[row // 2] - own.mean(axis=0)) <= np.median(distances)


@pytest.mark.parametrize("choose", [by_clusters, by_coverage])
def test_a_cluster_with_a_label_waits(choose: Choose) -> None:
    points, members = blobs()
    of_largest = 2 * int(np.flatnonzero(members == 0)[0])
    assert members[np.array(choose(points, {of_largest}, 3)) // 2].tolist() == [1, 2, 3]


def test_the_image_nearest_the_centre_of_its_cluster_is_asked_for() -> None:
    points, members = blobs()
    asked = representatives(points, (), 4, seed=0)
    for row in asked:
        own = np.flatnonzero(members == members[row // 2])
        distances = np.linalg.norm(points.points[own] - points.points[own].mean(axis=0), axis=1)
        assert row // 2 == own[distances.argmin()]


def test_near_duplicates_are_not_asked_for_twice() -> None:
    rng = np.random.default_rng(1)
    different = rng.normal(size=(12, 8))
    points = space(np.repeat(different, 5, axis=0) + 1e-3 * rng.normal(size=(60, 8)))
    asked = most_informative(points, rng.random(60).astype(np.float32), (), 12)
    assert sorted(row // 2 // 5 for row in asked) == list(range(12))


def test_questions_are_where_the_doubt_is() -> None:
    points, members = blobs()
    doubt = np.where(members == 3, 1.0, 0.01).astype(np.float32)
    assert members[most_informative(points, doubt, (), 1)[0] // 2] == 3


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9))
def test_the_choice_is_that_of_the_plain_greedy_search(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    points, doubt = space(rng.normal(size=(30, 4)), 0.8), rng.random(30).astype(np.float32)
    covers = np.exp(-((points.points[:, None] - points.points[None]) ** 2).sum(-1) / 0.8**2)
    covered, expected = covers[3], []
    for _ in range(count):
        gains = [
            -1.0 if place in (3, *expected) else (np.maximum(covered, covers[place]) * doubt).sum() - covered @ doubt
            for place in range(30)
        ]
        expected.append(int(np.argmax(gains)))
        covered = np.maximum(covered, covers[expected[-1]])
    assert most_informative(points, doubt, {6}, count) == [2 * place for place in expected]


@pytest.mark.parametrize("choose", [by_clusters, by_coverage])
def test_what_was_asked_is_never_chosen(choose: Choose) -> None:
    points, _ = blobs()
    asked = set(range(0, 80, 2))
    found = choose(points, asked, 1000)
    assert sorted(found) == list(range(80, 2 * sum(SIZES), 2)), "all others, once"
    assert choose(points, {*asked, *found}, 5) == []


def test_large_folders_are_searched_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "REFERENCES", 40)
    monkeypatch.setattr(order, "CANDIDATES", 30)
    points, members = blobs()
    asked = most_informative(points, None, (), len(SIZES))
    assert len({int(members[row // 2]) for row in asked}) == len(SIZES)


def test_images_are_compared_by_their_principal_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "DIMENSIONS", 5)
    page_model = a_page_model()
    found = space_of(page_model.bank, page_model.dataset.train)
    features = page_model.bank.plain(page_model.rows).flatten(1).double().numpy()
    expected = PCA(5).fit_transform(StandardScaler().fit_transform(features))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(found.points @ found.points.T, expected @ expected.T, atol=1e-3), (
        "the sign of a component is free"
    )
    distances = np.sort(np.linalg.norm(expected[:, None] - expected[None], axis=-1), axis=1)
    assert found.reach == pytest.approx(distances[:, 20].mean(), rel=1e-3)


def test_equal_images_do_no_harm() -> None:
    same = Space(np.arange(6), np.tile(np.eye(1, 4, dtype=np.float32), (6, 1)), 1e-3)
    assert sorted(most_informative(same, np.zeros(6, np.float32), (), 6)) == list(range(6))
    assert sorted(representatives(same, (), 6, seed=0)) == list(range(6))


def test_a_page_model_asks_for_training_images_once() -> None:
    page_model = a_page_model(train=40, test=10)
    for kind in ("informative", "random"):
        asked = page_model.first(1000, kind)
        assert sorted(asked) == page_model.dataset.train.tolist(), "all of them, and no test image"
        few = page_model.first(4, kind)
        following = page_model.next(None, answered(page_model, few[:2]), frozenset(few[2:]), 1000, kind)
        assert sorted([*few, *following]) == page_model.dataset.train.tolist()


def test_the_first_questions_show_every_class() -> None:
    page_model = a_page_model()
    assert set(answered(page_model, page_model.first(3)).labels.values()) == {0, 1, 2}


def test_random_order_is_one_permutation_by_seed() -> None:
    one, other = a_page_model(seed=1), a_page_model(seed=2)
    assert one.first(90, "random") == a_page_model(seed=1).first(90, "random") != other.first(90, "random")
    begun = one.first(10, "random")
    assert one.next(None, answered(one, begun), frozenset(), 5, "random") == one.first(15, "random")[10:]
