"""What a bank holds, compared with views by Pillow and a trunk written out; and what is computed to get there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.step.pillow import recipes, view
from cotrain import Config, Dataset, UserError
from cotrain.augment import PRESETS, Draw, Policy, draw_plain, draw_strong, draw_weak, joined
from cotrain.data.bank import PLAIN, view_names
from cotrain.trunk import building
from tests.trunk.tiny import (
    CONFIG,
    FEATURES,
    SIDE,
    Counting,
    files,
    on_disk,
    opened,
    reference,
    small_data,
    stored,
)

VIEWS = view_names(CONFIG.bank.weak, CONFIG.bank.strong)


def draw_of(name: str, image: int, policy: Policy) -> Draw:
    """The random decisions for a view, by the documented rule: blocks of 16 from (0, hash, kind, block)."""
    if name == PLAIN:
        return draw_plain(1)
    kind, number = name.split("-")
    block, place = divmod(int(number), 16)
    rng = np.random.default_rng((0, image, {"weak": 0, "strong": 1}[kind], block))
    return {"weak": draw_weak, "strong": draw_strong}[kind](policy, 16, SIDE, SIDE, rng)[place : place + 1]


def by_pillow(dataset: Dataset, row: int, name: str, policy: Policy) -> NDArray[np.uint8]:
    (recipe,) = recipes(draw_of(name, int(dataset.hashes[row]), policy))
    levels, hidden = view(dataset.images[row].numpy(), recipe, policy)
    levels = np.array(levels).reshape(SIDE, SIDE, 3)
    if hidden is not None:
        levels[hidden] = 127
    return levels


@pytest.mark.parametrize("preset", PRESETS)
def test_features_are_those_of_the_views_by_pillow(home: Path, preset: str) -> None:
    config = CONFIG.changed({"augment": preset, "bank.strong": 18})
    dataset = opened(small_data(12, 0, 3), config)
    names = ("weak-0", "weak-1", "strong-0", "strong-2", "strong-15", "strong-16", "strong-17")
    for name in names:
        expected = np.stack([by_pillow(dataset, row, name, config.augment) for row in dataset.train])
        np.testing.assert_allclose(stored(dataset, name, dataset.train), reference(expected), rtol=1e-3, atol=1e-3)
    everything = np.arange(15)
    expected = reference(dataset.images.numpy())
    np.testing.assert_allclose(stored(dataset, PLAIN, everything), expected, rtol=1e-3, atol=1e-3)
    of_first = np.stack([stored(dataset, name, dataset.train[:1]) for name in (PLAIN, *names)])
    assert len(np.unique(of_first.reshape(len(of_first), -1), axis=0)) == len(of_first), "all views differ"


def test_features_that_float16_cannot_hold_are_the_nearest_that_it_can(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "compiled", lambda trunk, kind: lambda images: np.full((len(images), 12, 1, 1), 1e6))
    dataset = opened(small_data(4, 0, 0))
    assert (stored(dataset, PLAIN, dataset.train) == np.finfo(np.float16).max).all()


def bank_of(dataset: Dataset, config: Config = CONFIG, names: list[str] = VIEWS) -> dict[int, NDArray[np.float32]]:
    """Image hash -> its features in all views."""
    with_bank = opened(dataset, config)
    features = np.stack([stored(with_bank, name, dataset.train) for name in names], axis=1)
    return dict(zip(dataset.hashes[dataset.train].tolist(), features, strict=True))


def assert_same(some: dict[int, NDArray[np.float32]], others: dict[int, NDArray[np.float32]]) -> None:
    assert some.keys() & others.keys()
    for image in some.keys() & others.keys():
        np.testing.assert_array_equal(some[image], others[image])


def test_views_depend_on_nothing_but_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the order of images, on other images, on the number of views, or on how the work is divided."""
    data = small_data()

    def at(name: str) -> None:
        monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / name))

    at("all")
    whole = bank_of(data)
    at("reversed")
    turned = np.arange(len(data.images))[::-1].copy()
    reverse = replace(data, images=data.images[turned], hashes=data.hashes[turned], train=turned[data.train].copy())
    assert_same(whole, bank_of(reverse))
    at("some")
    assert_same(whole, bank_of(replace(data, train=data.train[7:20])))
    at("more views")
    assert_same(whole, bank_of(data, CONFIG.changed({"bank.weak": 5, "bank.strong": 20})))
    at("divided")
    with monkeypatch.context() as patch:
        patch.setattr(building, "IMAGES_PER_TASK", 3)
        patch.setattr(building, "AT_ONCE", 5)
        patch.setattr(building, "cores", lambda: 4)
        assert_same(whole, bank_of(data))


def test_images_on_disk_give_the_same_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data()
    for name, dataset in {"memory": data, "disk": on_disk(data, tmp_path / "images")}.items():
        monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / name))
        opened(dataset)
    assert files(tmp_path / "memory") == files(tmp_path / "disk")


@pytest.mark.parametrize(
    ("change", "another"),
    [
        ({"augment.flip": False}, True),
        ({"augment": "fixmatch"}, True),
        ({"model.backbone": "tiny2"}, True),
        ({"model.share": "second"}, True),
        ({"model.trunk": "tuned"}, True),
        ({"run.seed": 1}, False),
        ({"bank.weak": 3}, False),
        ({"optim.lr": 0.01}, False),
        ({"method": "fixmatch"}, False),
        ({"model.share": "hidden"}, False),
        ({"model.hidden": None}, False),
    ],
)
def test_what_makes_another_bank(home: Path, change: dict[str, object], another: bool) -> None:
    data = small_data(8, 0, 0)
    first = opened(data).bank
    second = opened(data, CONFIG.changed(change)).bank
    assert first is not None and second is not None
    assert (first.folder != second.folder) == another


def test_another_size_makes_another_bank(home: Path) -> None:
    data = small_data(8, 0, 0)
    first = opened(data).bank
    second = opened(replace(data, images=data.images[:, :12])).bank
    assert first is not None and second is not None
    assert first.folder != second.folder


def test_only_what_is_missing_is_computed(home: Path, counting: Counting) -> None:
    data = small_data(40, 6, 10)
    fewer = replace(data, train=data.train[:30])
    opened(fewer)
    assert counting.since() == 30 * 6 + 16, "validation and test images: the plain view only"
    opened(fewer)
    assert (counting.since(), counting.compiled) == (0, 1), "the trunk is not even compiled"
    opened(data)
    assert counting.since() == 10 * 6
    opened(data, CONFIG.changed({"bank.strong": 5}))
    assert counting.since() == 40 * 2
    opened(data, CONFIG.changed({"bank.weak": 1, "bank.strong": 2}))
    assert counting.since() == 0
    opened(replace(data, train=np.arange(46), valid=data.valid[:0]))
    assert counting.since() == 6 * 5, "they have their plain view already"


def test_duplicates_are_computed_once(home: Path, counting: Counting) -> None:
    """Also a training image that is a test image too: it gets all views."""
    data = small_data(20, 0, 10)
    twice = np.concatenate([np.arange(30), np.arange(5), np.arange(20, 23)])
    doubled = replace(
        data,
        images=data.images[twice],
        hashes=data.hashes[twice],
        labels=data.labels[twice],
        train=np.r_[0:20, 35:38],
        test=np.r_[20:35],
    )
    dataset = opened(doubled)
    assert counting.since() == 23 * 6 + 7
    assert np.array_equal(stored(dataset, PLAIN, np.arange(5)), stored(dataset, PLAIN, np.arange(30, 35)))
    for name in VIEWS:
        assert stored(dataset, name, np.r_[35:38]).any(axis=(1, 2, 3)).all()


def test_without_augmentation_the_plain_views_are_enough(home: Path, counting: Counting) -> None:
    data = small_data()
    dataset = opened(data, augmented=False)
    assert counting.since() == 56
    rows = np.arange(56)
    np.testing.assert_allclose(stored(dataset, PLAIN, rows), reference(data.images.numpy()), rtol=1e-3, atol=1e-3)
    opened(data)
    assert counting.since() == 40 * 5


def test_rows_that_are_not_in_the_bank_cannot_be_read(home: Path) -> None:
    data = small_data()
    bank = opened(replace(data, test=data.test[:3])).bank
    assert bank is not None
    with pytest.raises(AssertionError):
        bank.plain(data.test)


def test_few_tasks_are_in_memory_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "cores", lambda: 2)
    submitted, finished, most = [], [], 0

    class Executor(building.ThreadPoolExecutor):
        def submit(self, function, task):  # type: ignore[no-untyped-def]
            nonlocal most
            submitted.append(task)
            most = max(most, len(submitted) - len(finished))
            future = super().submit(function, task)
            future.add_done_callback(finished.append)
            return future

    monkeypatch.setattr(building, "ThreadPoolExecutor", Executor)
    opened(small_data(120, 0, 0))
    assert (len(submitted), most) == (15, 4)


def test_a_spatial_trunk_keeps_its_height_and_width(home: Path) -> None:
    dataset = opened(small_data(8, 0, 0), CONFIG.changed({"model.share": "second"}))
    assert dataset.bank is not None and dataset.bank.shape == (FEATURES, 4, 4)
    expected = reference(dataset.images.numpy(), pooled=False)
    np.testing.assert_allclose(stored(dataset, PLAIN, dataset.train), expected, rtol=1e-3, atol=1e-3)


def test_too_small_images_are_one_line(home: Path) -> None:
    data = small_data(8, 0, 0)
    with pytest.raises(UserError, match="images of 16x4 are too small for augment"):
        opened(replace(data, images=data.images[:, :, :4]))


def test_draws_of_some_kinds_can_be_joined() -> None:
    policy, rng = Policy(), np.random.default_rng(0)
    made = [draw_plain(2), draw_strong(policy, 3, 16, 16, rng), draw_weak(policy, 1, 16, 16, rng)]
    together = joined(made)
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (6, 16, 16, 3)).astype(np.uint8))
    whole = building.pixels(images, np.arange(6), together, policy)
    for draw, start in zip(made, (0, 2, 5), strict=True):
        rows = np.arange(start, start + len(draw))
        assert torch.equal(whole[rows], building.pixels(images, rows, draw, policy))
