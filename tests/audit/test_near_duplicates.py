import numpy as np
import pytest

from cotrain.audit.near_duplicates import SAME, across, contradicting, near_duplicates
from cotrain.data.bank import Bank
from tests.audit.clusters import bank_of

HASHES = np.arange(8, dtype=np.uint64)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Eight images; 5 is almost 0, 6 is almost 1, and 7 has the features of 2."""
    rng = np.random.default_rng(0)
    features = rng.random((8, 40)) ** 4
    features[5], features[6], features[7] = 1.3 * features[0] + 0.02, features[1] + 0.01, features[2]
    return bank_of(tmp_path_factory.mktemp("bank"), features, HASHES)


def test_pairs_are_those_of_brute_force(bank: Bank) -> None:
    features = bank.plain(np.arange(8)).flatten(1).numpy().astype(np.float64)
    expected = {
        (first, second)
        for first in range(8)
        for second in range(first + 1, 8)
        if features[first] @ features[second]
        >= SAME * np.linalg.norm(features[first]) * np.linalg.norm(features[second])
    }
    found = near_duplicates(bank, np.arange(8), HASHES)
    assert {(pair.first, pair.second) for pair in found} == expected == {(0, 5), (1, 6), (2, 7)}
    assert [pair.likeness for pair in found] == sorted((pair.likeness for pair in found), reverse=True)


def test_equal_pixels_are_no_near_duplicates(bank: Bank) -> None:
    hashes = HASHES.copy()
    hashes[7] = hashes[2]
    assert {(pair.first, pair.second) for pair in near_duplicates(bank, np.arange(8), hashes)} == {(0, 5), (1, 6)}


def test_labels_contradict_only_if_both_are_known(bank: Bank) -> None:
    pairs = near_duplicates(bank, np.arange(8), HASHES)
    labels = np.array([0, 0, 0, 0, 0, 1, -1, 0])
    assert [(pair.first, pair.second) for pair in contradicting(pairs, labels)] == [(0, 5)]


def test_test_images_that_are_in_training(bank: Bank) -> None:
    pairs = near_duplicates(bank, np.arange(8), HASHES)
    assert across(pairs, np.array([0, 3, 6]), np.array([1, 4, 5])).tolist() == [1, 5]
    assert across([], np.array([0]), np.array([5])).tolist() == []
