"""Rows of features as a dataset, and their batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from cotrain import UserError
from cotrain.audit.duplicates import duplicates, leaks
from cotrain.data import Column, Drawing, Features, FeatureSource, Split, draw_split, from_features
from cotrain.data.inputs import FeatureInputs
from cotrain.data.settings import DataSettings
from cotrain.ops import one_hot
from cotrain.training.state import pool_of
from cotrain.types import Views

CPU = torch.device("cpu")
COLOURS = Column("colour", ("blue", "green", "red"))


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.c_[rng.normal(100, 20, 60), rng.integers(0, 3, 60), rng.normal(0, 1e-4, 60), np.full(60, 7.0)]


def columns() -> list[Column]:
    return [Column("size"), COLOURS, Column("tiny"), Column("constant")]


def test_inputs_are_standardised_numbers_and_one_per_category(values: np.ndarray) -> None:
    features = Features(values, tuple(columns()))
    inputs = FeatureInputs(features, *features.statistics(np.arange(60))).plain(np.arange(60), CPU)
    assert inputs.shape == (60, 6, 1, 1)
    assert features.shape == (60, 1, 1, 6)
    scaled, codes = (
        StandardScaler().fit_transform(values),
        OneHotEncoder(sparse_output=False).fit_transform(values[:, [1]]),
    )
    expected = np.c_[scaled[:, 0], codes, scaled[:, 2], np.zeros(60)]
    assert np.allclose(inputs[..., 0, 0], expected, atol=1e-5)


def test_an_unknown_category_is_all_zeros() -> None:
    found = one_hot(torch.tensor([[5.0, -1.0], [6.0, 1.0]]), (0, 2))
    assert found.tolist() == [[5, 0, 0], [6, 0, 1]]


def test_sparse_rows_are_the_dense_rows(values: np.ndarray) -> None:
    values = np.where(values > 1, values, 0)
    dense, thin = Features(values, tuple(columns())), Features(sparse.csr_array(values), tuple(columns()))
    rows = np.array([5, 3, 3])
    assert np.array_equal(dense[rows], thin[rows])
    assert np.array_equal(dense.hashes(), thin.hashes())
    assert np.allclose(dense.statistics(np.arange(60)), thin.statistics(np.arange(60)))


def test_equal_rows_and_only_those_have_equal_hashes() -> None:
    values = np.random.default_rng(0).integers(0, 3, (5000, 4)).astype(np.float32)
    values[values == 0] *= -1
    hashes = Features(values, tuple(map(Column, "abcd"))).hashes()
    assert len(np.unique(hashes)) == len(np.unique(values + 0, axis=0)) == 81


def test_duplicates_and_leaks_are_found_among_rows(values: np.ndarray) -> None:
    labels = np.arange(60) % 2
    dataset = from_features(np.r_[values, values[:1]], np.r_[labels, 1], test=(values[:2], labels[:2]))
    assert sorted(group.tolist() for group in duplicates(dataset)) == [[0, 60, 61], [1, 62]]
    split = draw_split(dataset, DataSettings(), seed=0)
    assert leaks(dataset, split).tolist() == [61, 62]


def test_a_memory_map_stays_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32))
    dataset = from_features(np.load(tmp_path / "x.npy", mmap_mode="r"), np.arange(50) % 2)
    assert isinstance(dataset.images.values, np.memmap)
    assert dataset.kind.kept == "read from disk during training"


@pytest.fixture(scope="module")
def source(values: np.ndarray) -> FeatureSource:
    dataset = from_features(values, np.where(np.arange(60) < 20, np.arange(60) % 2, -1), columns=columns())
    views = Views(weak=2, strong=3, labelled_strong=1)
    split = draw_split(dataset, DataSettings(test_share=0.0), seed=0)
    return made(dataset, split, views)


def made(dataset: object, split: Split, views: Views, seed: int = 0) -> FeatureSource:
    drawing = Drawing(views, labelled=5, unlabelled=8, seed=seed)
    pool = pool_of(dataset, split)
    return FeatureSource(dataset.kind.inputs(pool.unlabelled.numpy()), pool, drawing, CPU)


def test_batches_have_the_views_of_their_rows(source: FeatureSource) -> None:
    batch = source.batch(3)
    assert batch.x.shape == (5, 6, 1, 1)
    assert batch.weak.shape == (2, 8, 6, 1, 1)
    assert batch.strong.shape == (3, 8, 6, 1, 1)
    assert batch.x_strong.shape == (1, 5, 6, 1, 1)
    plain = source.inputs.plain(batch.unlabelled_rows.numpy(), CPU)
    assert torch.equal(batch.weak[:, :, 1:4], plain[None, :, 1:4].expand(2, -1, -1, -1, -1)), "categories stay"
    assert (batch.weak - plain).abs().max() < 0.6
    assert (batch.strong - plain).abs().max() > 0.6
    assert torch.equal(batch.strong[:, :, 1:4].sum(dim=2), torch.ones(3, 8, 1, 1)), "one category each"


def test_a_batch_depends_on_seed_and_step_only(source: FeatureSource) -> None:
    first, again, later = source.batch(3), source.batch(3), source.batch(4)
    assert torch.equal(first.strong, again.strong)
    assert torch.equal(first.weak, again.weak)
    assert not torch.equal(first.strong, later.strong)


def test_weak_views_can_be_the_rows_themselves(values: np.ndarray) -> None:
    dataset = from_features(values, np.arange(60) % 2)
    split = draw_split(dataset, DataSettings(test_share=0.0), seed=0)
    batch = made(dataset, split, Views(weak=1, weak_augment=False)).batch(0)
    rows = made(dataset, split, Views()).inputs.plain(batch.unlabelled_rows.numpy(), CPU)
    assert torch.equal(batch.weak[0], rows)


@pytest.mark.parametrize(
    ("values", "labels", "words"),
    [
        ([[1, np.nan], [2, 3]], [0, 1], "column '1' is empty .NaN. in row 0"),
        ([[1, 2], [np.inf, 3]], [0, 1], "column '0' is infinite in row 1"),
        ([[1, 2], [1e300, 3]], [0, 1], "column '0' is too large .1e.300. in row 1"),
        ([[1, 2], [2, 3]], [0, 0], "all labelled training rows have class 0"),
        ([[1, 2], [2, 3]], [-1, -1], "no training row has a label"),
        ([[1, 2], [2, 3]], [0, 1, 1], "2 rows but 3 labels"),
        ([1, 2], [0, 1], "must be numbers .rows, columns."),
        ([["a"], ["b"]], [0, 1], "must be numbers"),
        ([[1], [2]], [0.5, 1], "labels must be one integer per row"),
        ([[1], [2]], [0, -3], "labels must be from 0 to 0, or -1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(values: list, labels: list, words: str) -> None:
    with pytest.raises(UserError, match=words):
        from_features(np.array(values), np.array(labels))
