"""Batches from a bank: the right rows and views, decided by (seed, step) alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cotrain import Dataset
from cotrain.data import BankSource, Drawing, Split, draw_split
from cotrain.data.bank import Bank, choose_views, view_names
from cotrain.data.inputs import FEATURES_AT_ONCE, BankInputs
from cotrain.data.source import Exchange
from cotrain.training.state import pool_of
from cotrain.types import Batch, Views
from tests.trunk.tiny import CONFIG, small_data

CPU = torch.device("cpu")
WEAK, STRONG = 3, 4
SHAPE = (2, 3, 1)
CODES = {name: number for number, name in enumerate(view_names(WEAK, STRONG))}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Features that say which image and which view they are of: (row, view)."""
    folder, dataset = tmp_path_factory.mktemp("bank"), small_data()

    def read(name: str, rows: np.ndarray) -> np.ndarray:
        features = np.zeros((len(rows), *SHAPE), np.float16)
        features[:, 0], features[:, 1] = rows[:, None, None], CODES[name]
        return features

    return replace(dataset, bank=Bank(folder, dataset.hashes, SHAPE, WEAK, STRONG, read))


@pytest.fixture(scope="module")
def split(data: Dataset) -> Split:
    return draw_split(data, CONFIG.data, seed=0)


def source(
    data: Dataset, split: Split, views: Views, *, seed: int = 0, weights: np.ndarray | None = None
) -> BankSource:
    drawing = Drawing(views, labelled=5, unlabelled=12, seed=seed)
    return BankSource(BankInputs(data.bank), pool_of(data, split, weights=weights), drawing, CPU)


def rows_and_views(features: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(..., C, h, w) -> which image and which view each is, from its first value; all others agree."""
    assert torch.equal(features, features[..., :1, :1].expand_as(features))
    row, view = features[..., 0, 0].int().unbind(-1)
    return row.numpy(), view.numpy()


def same(some: Batch, other: Batch) -> bool:
    return all(torch.equal(value, vars(other)[key]) for key, value in vars(some).items())


def test_batches_have_the_views_that_are_wanted_of_the_right_images(data: Dataset, split: Split) -> None:
    batches = source(data, split, Views(weak=2, strong=3, labelled_strong=1))
    for step in range(20):
        batch = batches.batch(step)
        for features, kind, rows in (
            (batch.x, "weak", batch.labelled_rows),
            (batch.weak, "weak", batch.unlabelled_rows),
            (batch.strong, "strong", batch.unlabelled_rows),
            (batch.x_strong, "strong", batch.labelled_rows),
        ):
            found, views = rows_and_views(features)
            assert np.array_equal(found, np.broadcast_to(rows.numpy(), found.shape))
            assert set(np.unique(views)) <= {code for name, code in CODES.items() if name.startswith(kind)}
        assert (batch.x.shape, batch.x_strong.shape) == ((5, *SHAPE), (1, 5, *SHAPE))
        assert (batch.weak.shape, batch.strong.shape) == ((2, 12, *SHAPE), (3, 12, *SHAPE))
        assert set(batch.labelled_rows.tolist()) <= set(split.labelled)
        assert set(batch.unlabelled_rows.tolist()) <= set(split.unlabelled)
        assert torch.equal(batch.y, data.labels[batch.labelled_rows])


def test_the_views_of_an_image_differ_while_there_are_enough(data: Dataset, split: Split) -> None:
    batches = source(data, split, Views(weak=WEAK, strong=3))
    chosen = []
    for step in range(50):
        batch = batches.batch(step)
        for features in (batch.weak, batch.strong):
            _, views = rows_and_views(features)
            assert all(len(set(of_image)) == len(of_image) for of_image in views.T.tolist())
        chosen.append(rows_and_views(batch.strong)[1][0])
    counts = np.bincount(np.concatenate(chosen) - CODES["strong-0"], minlength=STRONG)
    assert (abs(counts / counts.sum() - 1 / STRONG) < 0.06).all(), "each is equally likely"


def test_more_views_than_there_are_repeat_some() -> None:
    chosen = choose_views(6, 200, 4, np.random.default_rng(0))
    assert chosen.shape == (6, 200) and set(chosen.ravel().tolist()) == set(range(4))
    assert choose_views(0, 5, 4, np.random.default_rng(0)).shape == (0, 5)


def test_a_batch_depends_on_seed_and_step_only(data: Dataset, split: Split) -> None:
    views = Views(weak=2, strong=3, labelled_strong=1)
    first, second = source(data, split, views), source(data, split, views)
    in_order = [first.batch(step) for step in range(6)]
    for step in (4, 1, 5):
        assert same(second.batch(step), in_order[step])
    for step, batch in enumerate(second.batches(2, 6), start=2):
        assert same(batch, in_order[step])
    assert not same(source(data, split, views, seed=1).batch(0), in_order[0])
    assert not same(in_order[0], in_order[1])


def test_labels_are_drawn_in_proportion_to_their_weights_within_their_class() -> None:
    labels, weights = np.array([2, 0, 0, 2, 0, 4, 2]), np.array([1.0, 0.5, 2.0, 1.0, 0.5, 0.2, 1.0])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(labels), size=60_000)
    exchanged = Exchange(labels, weights)(drawn, rng)
    assert (labels[exchanged] == labels[drawn]).all()
    found = np.bincount(exchanged, minlength=len(labels)) / len(drawn)
    assert found == pytest.approx(np.array([1, 0.5, 2, 1, 0.5, 1, 1]) / len(labels), abs=0.01)
    same_weights = labels != 0
    assert (exchanged[same_weights[drawn]] == drawn[same_weights[drawn]]).all()


def test_weights_change_the_labelled_rows_only_and_equal_weights_nothing(data: Dataset, split: Split) -> None:
    views, count = Views(weak=1, strong=1), len(split.labelled)
    plain, equal = source(data, split, views), source(data, split, views, weights=np.full(count, 0.3))
    weights = np.where(np.arange(count) < count // 2, 0.01, 1.0)
    weighted = source(data, split, views, weights=weights)
    changed = 0
    for step in range(10):
        assert same(plain.batch(step), equal.batch(step))
        some, other = plain.batch(step), weighted.batch(step)
        assert torch.equal(some.unlabelled_rows, other.unlabelled_rows) and torch.equal(some.y, other.y)
        changed += int((some.labelled_rows != other.labelled_rows).sum())
    assert changed


def test_the_rows_are_those_of_a_run_on_pixels(data: Dataset, split: Split) -> None:
    rng = np.random.default_rng((0, 7))
    batch = source(data, split, Views(weak=1, strong=1)).batch(7)
    assert np.array_equal(batch.labelled_rows, rng.choice(np.asarray(split.labelled), 5))
    assert np.array_equal(batch.unlabelled_rows, rng.choice(np.asarray(split.unlabelled), 12))


def test_unaugmented_weak_views_are_the_plain_ones(data: Dataset, split: Split) -> None:
    batch = source(data, split, Views(weak=2, strong=1, weak_augment=False)).batch(0)
    rows, views = rows_and_views(batch.weak)
    assert np.array_equal(rows, np.tile(batch.unlabelled_rows, (2, 1)))
    assert (views == CODES["plain"]).all()
    assert (rows_and_views(batch.x)[1] != CODES["plain"]).all()


@pytest.mark.parametrize("views", [Views(weak=0, strong=0), Views(weak=0, strong=2), Views(weak=0, weak_augment=False)])
def test_views_that_are_not_wanted_are_empty(data: Dataset, split: Split, views: Views) -> None:
    batch = source(data, split, views).batch(0)
    assert batch.weak.shape == (0, 12, *SHAPE) and batch.strong.shape == (views.strong, 12, *SHAPE)


def test_a_pass_uses_every_unlabelled_image_once(data: Dataset, split: Split) -> None:
    batches = source(data, split, Views(weak=1, every_pass=True))
    images = len(split.unlabelled)
    seen = np.concatenate([batches.batch(step).unlabelled_rows for step in range(2 * images // 12 + 1)])
    assert sorted(seen[:images]) == sorted(seen[images : 2 * images]) == sorted(split.unlabelled)
    assert not np.array_equal(seen[:images], seen[images : 2 * images])
    rows, _ = rows_and_views(batches.batch(1).weak)
    assert np.array_equal(rows[0], seen[12:24])


@pytest.mark.parametrize("views", [Views(weak=1), Views(weak=1, every_pass=True)])
def test_the_rows_of_coming_steps_are_known(data: Dataset, split: Split, views: Views) -> None:
    batches = source(data, split, views)
    seen = np.concatenate([batches.batch(step).unlabelled_rows for step in range(2, 5)])
    assert np.array_equal(batches.unlabelled_of(2, 5), np.unique(seen))


def test_no_label_of_an_unlabelled_image_is_visible(data: Dataset, split: Split) -> None:
    hidden = data.labels.clone()
    hidden[[row for row in split.unlabelled if row not in split.labelled]] = -1
    views = Views(weak=2, strong=3, labelled_strong=1)
    for step in range(10):
        batch = source(replace(data, labels=hidden), split, views).batch(step)
        assert (batch.y >= 0).all() and same(batch, source(data, split, views).batch(step))


def test_evaluation_reads_the_plain_features(data: Dataset) -> None:
    assert data.bank is not None
    inputs, rows = BankInputs(data.bank), np.array([50, 3, 3, 41])
    found, views = rows_and_views(inputs.plain(rows, CPU))
    assert np.array_equal(found, rows) and (views == CODES["plain"]).all()
    assert inputs.facts == {"features": [2, 3, 1], "trunk": ""}
    assert inputs.at_once(nn.Identity()) * 6 <= FEATURES_AT_ONCE
    assert BankInputs(replace(data.bank, shape=(4096, 32, 32))).at_once(nn.Identity()) == 1
