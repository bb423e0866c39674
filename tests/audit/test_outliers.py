from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import betabinom

from cotrain.audit import outliers
from cotrain.audit.outliers import (
    ByHeads,
    ByNeighbours,
    are_too_many,
    by_heads,
    by_neighbours,
    p_values,
    read_belonging,
    share_of_strangers,
    smallest_rate,
    training_p_values,
    write_belonging,
)
from cotrain.types import UserError
from tests.audit.clusters import Clusters, clusters


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Clusters:
    """Three classes, and junk that is a fifth of the unlabelled images."""
    return clusters(tmp_path_factory.mktemp("bank"), junk=40)


def test_p_values_are_those_of_a_rank_test() -> None:
    held_out = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    found = p_values(np.array([0.5, 1.0, 2.5, 9.0], np.float32), held_out)
    assert found.tolist() == [1 / 5, 2 / 5, 3 / 5, 1.0]
    assert smallest_rate(4) == 1 / 5


def test_a_threshold_keeps_its_rate_of_false_alarms() -> None:
    """For images that are drawn like the labelled ones: over many draws, at most r of them are at r or below."""
    rng = np.random.default_rng(0)
    alarms = []
    for _ in range(400):
        scores = rng.normal(size=60).astype(np.float32)
        alarms.append((p_values(scores[:40], np.sort(scores[40:])) <= 0.2).mean())
    assert np.mean(alarms) == pytest.approx(4 / 21, abs=0.02)  # the largest of the possible rates up to 0.2


def test_junk_has_small_p_values_and_the_classes_do_not(made: Clusters) -> None:
    belonging = by_neighbours(made.known)
    unlabelled = np.setdiff1d(made.split.unlabelled, made.split.labelled)
    of_unlabelled = training_p_values(made.known, belonging, made.bank, unlabelled)
    junk = np.isin(unlabelled, made.junk)
    assert (of_unlabelled[junk] <= 0.1).all()
    assert (of_unlabelled[~junk] <= 0.1).mean() <= 0.2
    assert (training_p_values(made.known, belonging, made.bank, np.array(made.split.labelled)) == 1).all()
    assert share_of_strangers(of_unlabelled, len(made.split.labelled)) == pytest.approx(junk.mean(), abs=0.15)


def test_new_images_are_judged_like_training_images(made: Clusters) -> None:
    belonging = by_neighbours(made.known)
    nothing = torch.zeros(1, 0, 3)
    assert belonging.p_values(made.draw(0, 20, seed=7), nothing).min() > smallest_rate(len(made.split.labelled))
    assert belonging.p_values(made.draw(None, 20, seed=8), nothing).max() <= 0.1


def test_no_share_of_strangers_without_strangers(tmp_path: Path) -> None:
    clean = clusters(tmp_path, junk=0)
    unlabelled = np.setdiff1d(clean.split.unlabelled, clean.split.labelled)
    found = training_p_values(clean.known, by_neighbours(clean.known), clean.bank, unlabelled)
    assert share_of_strangers(found, len(clean.split.labelled)) == 0.0
    assert share_of_strangers(np.empty(0), 10) == 0.0


def test_heads_alone_say_it_by_their_highest_logit() -> None:
    belonging = by_heads(torch.tensor([[[4.0, 0.0], [3.0, 0.0], [2.0, 0.0]]]))
    found = belonging.p_values(np.empty((0, 0), np.float32), torch.tensor([[[0.1, 0.0], [9.0, 0.0]]]))
    assert found.tolist() == [1 / 4, 1.0]


def test_written_and_read_back(made: Clusters, tmp_path: Path) -> None:
    assert read_belonging(tmp_path / "none") is None
    features, nothing = made.draw(1, 9, seed=3), torch.zeros(1, 0, 3)
    belonging = by_neighbours(made.known)
    write_belonging(tmp_path / "a", belonging)
    again = read_belonging(tmp_path / "a")
    assert isinstance(again, ByNeighbours)
    np.testing.assert_allclose(again.p_values(features, nothing), belonging.p_values(features, nothing), atol=0.1)
    heads = ByHeads(np.array([0.5, 0.9], np.float32))
    write_belonging(tmp_path / "b", heads)
    assert repr(read_belonging(tmp_path / "b")) == repr(heads)


def test_a_damaged_file_is_named(made: Clusters, tmp_path: Path) -> None:
    from cotrain.runs.checkpoint import write_tensors

    whole = {"directions": torch.ones(4, 2), "points": torch.ones(3, 2), "reach": torch.ones(3)}
    whole["held_out"] = torch.zeros(3)
    damaged = [
        {},
        {"points": whole["points"], "held_out": whole["held_out"]},
        {"held_out": torch.zeros(3, 1)},
        {"held_out": torch.zeros(3, dtype=torch.complex64)},
        *({**whole, name: torch.ones(5)} for name in ("directions", "points", "reach")),
        {**whole, "held_out": torch.zeros(())},
        {**whole, "points": torch.ones(0, 2), "reach": torch.ones(0)},
    ]
    for tensors in damaged:
        write_tensors(tmp_path / "a", tensors, {})
        with pytest.raises(UserError, match="is damaged: it lacks arrays"):
            read_belonging(tmp_path / "a")
    write_tensors(tmp_path / "a", whole, {})
    other = read_belonging(tmp_path / "a")
    assert other is not None
    with pytest.raises(UserError, match="is not of this model"):
        other.p_values(np.zeros((2, 5), np.float32), torch.zeros(1, 2, 3))


@pytest.mark.parametrize(("strange", "clear"), [(0, 0.05), (50, 1)])
def test_few_labels_alone_do_not_make_images_strange(strange: int, clear: float) -> None:
    """How often 24 labels clearly find something among 200 images, if some, or none, are unlike every labelled one."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        scores = np.r_[rng.random(200 - strange), np.full(strange, -1)]
        found.append(are_too_many(p_values(scores, np.sort(rng.random(24))), 24))
    assert np.mean(found) <= clear if strange == 0 else np.mean(found) == clear


@pytest.mark.parametrize("images", [200, 3 * outliers.AT_ONCE])
def test_the_chance_is_that_of_scipys_beta_binomial(images: int) -> None:
    places, counts = np.array([1, 2, 4, 8]), np.array([0, 5, 90, images])
    expected = betabinom.sf(counts - 1, images, places, 25 - places)
    np.testing.assert_allclose(outliers._chance_of_at_least(counts, images, places, 25 - places), expected, atol=1e-10)
