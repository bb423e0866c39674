"""Data sets from arrays and .npz files, what is refused, splits and batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cotrain import Dataset, UserError, from_arrays
from cotrain.augment import PRESETS
from cotrain.data import DataSettings, Drawing, Source, Split, draw_split, open_data
from cotrain.training.state import pool_of
from cotrain.types import Views


def images(count: int, size: int = 8, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def some(labels: list[int]) -> Dataset:
    return from_arrays(images(len(labels)), np.array(labels), name="some")


def split_of(dataset: Dataset, labels: int | None = None, balance: str = "equal", seed: int = 0, **more: bool) -> Split:
    settings = DataSettings(labels=labels, balance=balance, test_share=0, include_labelled=more.get("include", True))
    return draw_split(dataset, settings, seed)


def test_digits_are_the_ones_of_scikit_learn() -> None:
    digits = open_data("digits")
    assert digits.images.shape == (1797, 16, 16, 1)
    assert (len(digits.train), len(digits.valid), len(digits.test)) == (1297, 0, 500)
    assert np.bincount(digits.labels[digits.test]).min() >= 48
    assert digits.fingerprint == open_data("digits").fingerprint


def test_npz_with_medmnist_keys(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    arrays = {
        "train_images": images(6),
        "train_labels": np.array([[0], [1], [2], [0], [1], [2]], dtype=np.uint8),
        "val_images": images(3, seed=1),
        "val_labels": np.array([[0], [1], [2]]),
        "test_images": images(2, seed=2),
        "test_labels": np.array([[2], [0]]),
    }
    np.savez(path, **arrays, classes=np.array(["cat", "dog", "owl"]))
    dataset = open_data(str(path))
    assert dataset.classes == ("cat", "dog", "owl")
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (6, 3, 2)
    assert torch.equal(dataset.images[dataset.test], torch.from_numpy(arrays["test_images"]))
    assert dataset.labels[dataset.valid].tolist() == [0, 1, 2]


def test_pixel_statistics_are_numpys() -> None:
    dataset = from_arrays(images(50), np.arange(50) % 2)
    mean, std = dataset.kind.statistics(np.arange(10, 40))
    scaled = images(50)[10:40] / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 1, 2)), rtol=1e-12)


def test_a_constant_channel_has_a_usable_deviation() -> None:
    assert from_arrays(np.full((4, 8, 8), 7, np.uint8), [0, 1, 0, 1]).kind.statistics(np.arange(4))[1] == [1.0]


GOOD = (images(4), np.array([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("pixels", "labels", "more", "message"),
    [
        (images(0), np.zeros(0, int), {}, "train contains no images"),
        (images(4), np.array([0, 1, 0]), {}, "4 images but 3 labels"),
        (images(4).astype(float), GOOD[1], {}, "float64; they must be uint8"),
        (images(4)[0, 0], GOOD[1], {}, r"shape \(8, 3\); they must be"),
        (images(4), np.eye(4, 3, dtype=int), {}, "one integer per image"),
        (images(4), np.array([0.5, 1, 0, 1]), {}, "one integer per image"),
        (images(4), np.array([1, 1, -1, 1]), {"classes": ("a", "b")}, "all labelled training images have class b"),
        (images(4), np.array([-1, -1, -1, -1]), {"classes": ("a", "b")}, "no training image has a label"),
        (images(4), np.array([0, 1, 5, 1]), {"classes": ("a", "b")}, "row 2 has label 5; labels run from 0 to 1"),
        (images(4), np.array([0, 1, -2, 1]), {}, "row 2 has label -2"),
        (*GOOD, {"test": (images(2, size=9), [0, 1])}, "differ in size"),
        (*GOOD, {"test": (images(2), [0, -1])}, "test image 1 has no label"),
        (*GOOD, {"valid": (images(2), [-1, 0])}, "valid image 0 has no label"),
        (
            images(4),
            np.array([0, 1, 0, 30_000]),
            {},
            "label 30000 is too large for 4 images; number",
        ),
        (images(4), np.array([0, 1, 0, 2**63 + 5], np.uint64), {}, "labels go up to 9223372036854775813"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(pixels, labels, more, message) -> None:
    with pytest.raises(UserError, match=message) as caught:
        from_arrays(pixels, labels, **more)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_data(str(tmp_path / "absent.npz"))
    with pytest.raises(UserError, match=r"absent does not exist; data are a folder of images, a .npz file, a table"):
        open_data(str(tmp_path / "absent"))
    with pytest.raises(UserError, match="there is no image file in"):
        open_data(str(tmp_path))
    (tmp_path / "photos.zip").touch()
    with pytest.raises(UserError, match=r"photos.zip is an archive, .*; unpack it and name the folder"):
        open_data(str(tmp_path / "photos.zip"))
    (tmp_path / "thesis.pdf").touch()
    with pytest.raises(UserError, match=r"thesis.pdf is not data that cotrain reads"):
        open_data(str(tmp_path / "thesis.pdf"))
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(UserError, match=r"text.npz is not a readable .npz file"):
        open_data(str(tmp_path / "text.npz"))
    (tmp_path / "empty.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"empty.npz is not a readable .npz file"):
        open_data(str(tmp_path / "empty.npz"))
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(UserError, match="has no train_images and no train_labels; it contains x"):
        open_data(str(tmp_path / "other.npz"))
    np.savez(tmp_path / "half.npz", train_images=images(4), train_labels=[0, 1, 0, 1], test_images=images(2))
    with pytest.raises(UserError, match="has test_images but no test_labels"):
        open_data(str(tmp_path / "half.npz"))
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(UserError, match=r"array.npz is not a readable .npz file"):
        open_data(str(tmp_path / "array.npz"))
    np.savez_compressed(tmp_path / "flipped.npz", train_images=images(40), train_labels=np.arange(40) % 2)
    content = bytearray((tmp_path / "flipped.npz").read_bytes())
    content[2000] ^= 255
    (tmp_path / "flipped.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"flipped.npz is not a readable .npz file"):
        open_data(str(tmp_path / "flipped.npz"))
    for classes in (np.array("cat"), np.array(["cat", "cat"])):
        np.savez(tmp_path / "names.npz", train_images=images(4), train_labels=[0, 1, 0, 1], classes=classes)
        with pytest.raises(UserError, match="`classes` must hold two or more different names"):
            open_data(str(tmp_path / "names.npz"))
    np.savez(tmp_path / "pickle.npz", train_images=np.array([{}], dtype=object), train_labels=[0])
    with pytest.raises(UserError, match=r"pickle.npz is not a readable .npz file of plain arrays"):
        open_data(str(tmp_path / "pickle.npz"))


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    seed=st.integers(0, 5),
    balance=st.sampled_from(["equal", "proportional"]),
    data=st.data(),
)
def test_a_split_has_as_many_labels_as_asked_for(
    counts: list[int], seed: int, balance: str, data: st.DataObject
) -> None:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    dataset = from_arrays(np.zeros((len(labels), 1, 1), np.uint8), np.array(labels))
    most = min(counts) * len(counts) if balance == "equal" else len(labels)
    wanted = data.draw(st.integers(len(counts), most))
    split = split_of(dataset, wanted, balance, seed)
    drawn = np.bincount(np.array(labels)[list(split.labelled)], minlength=len(counts))
    assert drawn.sum() == wanted == len(set(split.labelled))
    assert drawn.min() >= 1
    if balance == "equal":
        assert drawn.max() - drawn.min() <= 1
    assert split == split_of(dataset, wanted, balance, seed)


def test_proportional_shares_follow_the_classes() -> None:
    split = split_of(some([0] * 60 + [1] * 30 + [2] * 10), 20, "proportional")
    rows = np.array(split.labelled)
    assert [(rows < 60).sum(), ((rows >= 60) & (rows < 90)).sum(), (rows >= 90).sum()] == [12, 6, 2]


def test_other_seeds_draw_other_labels() -> None:
    dataset = some([0, 1] * 50)
    assert split_of(dataset, 10, seed=0).labelled != split_of(dataset, 10, seed=1).labelled
    assert split_of(dataset, 10, seed=0).hash != split_of(dataset, 10, seed=1).hash


def test_the_hash_of_a_split_is_of_all_its_rows_and_nothing_else() -> None:
    split = Split(
        name="a", source="b", fingerprint="c", labelled=(1, 2), unlabelled=(1, 2, 3, 4), valid=(5, 6), test=(7, 8)
    )
    others = {"fingerprint": "d", "labelled": (1, 3), "unlabelled": (1, 2, 3), "valid": (5,), "test": (7, 9)}
    hashes = {split.model_copy(update={key: value}).hash for key, value in others.items()}
    assert len(hashes - {split.hash}) == len(others)
    moved = split.model_copy(update={"valid": (5,), "test": (6, 7, 8)})
    assert moved.hash not in hashes | {split.hash}
    assert split.model_copy(update={"name": "e", "source": None}).hash == split.hash


@given(
    labels=st.lists(st.sampled_from([0, 1, -1]), min_size=30, max_size=80),
    shares=st.tuples(st.sampled_from([0.0, 0.2, 0.4]), st.sampled_from([0.0, 0.1, 0.3])),
    given_test=st.booleans(),
    include=st.booleans(),
    seed=st.integers(0, 3),
)
def test_nothing_that_judges_is_trained_on(
    labels: list[int], shares: tuple[float, float], given_test: bool, include: bool, seed: int
) -> None:
    """Given or set aside, test and validation images are neither labelled nor unlabelled ones; no other row is lost."""
    labels = [0, 1] * 5 + [-1] + labels
    more = {"test": (images(6, seed=1), np.array([0, 1] * 3))} if given_test else {}
    dataset = from_arrays(images(len(labels)), np.array(labels), **more)
    settings = DataSettings(test_share=shares[0], valid_share=shares[1], include_labelled=include)
    split = draw_split(dataset, settings, seed)
    labelled, unlabelled = set(split.labelled), set(split.unlabelled)
    valid, test = set(split.valid), set(split.test)
    assert not (valid | test) & (labelled | unlabelled) and not valid & test
    assert labelled | unlabelled | valid | test == set(range(len(dataset.images)))
    assert (labelled <= unlabelled) if include else not labelled & unlabelled
    assert bool(test) == (given_test or shares[0] > 0) and bool(valid) == (shares[1] > 0)
    assert not given_test or test == set(range(len(labels), len(labels) + 6))
    split.check_usable(dataset)


@pytest.mark.parametrize("part", ["valid", "test"])
@pytest.mark.parametrize("also", ["labelled", "unlabelled"])
def test_a_split_that_trains_on_what_it_tests_on_is_refused(part: str, also: str) -> None:
    dataset = some([0, 1] * 10)
    split = split_of(dataset, 4)
    rows = tuple(row for row in split.unlabelled if row not in (6, *split.labelled))
    clean = split.model_copy(update={"unlabelled": rows, part: (6,)})
    clean.check_usable(dataset)
    leaking = clean.model_copy(update={also: (*getattr(clean, also), 6)})
    with pytest.raises(UserError, match="both trains and tests on row 6"):
        leaking.check_usable(dataset)


def test_unlabelled_images_include_the_labelled_ones_unless_told_otherwise() -> None:
    dataset = some([0, 1] * 10)
    with_them, without = split_of(dataset, 4), split_of(dataset, 4, include=False)
    assert set(with_them.labelled) < set(with_them.unlabelled) == set(range(20))
    assert set(without.unlabelled) == set(range(20)) - set(without.labelled)


def test_labels_that_are_there_are_used_when_no_number_is_given() -> None:
    split = split_of(some([0, -1, 1, -1, 0]))
    assert split.labelled == (0, 2, 4)
    assert split.unlabelled == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("labels", "wanted", "balance", "message"),
    [
        ([0, 1, 2, 0], 2, "equal", "data.labels=2 is fewer than the 3 classes"),
        ([0, 1, 2, 0], 9, "equal", "has only 4 labelled training images"),
        ([0, 0, 0, 0, 1], 4, "equal", "2 labels are needed for class 1, but it has only 1"),
        ([0, 0, 2, -1], None, "equal", "no labelled training image of class 1"),
    ],
)
def test_splits_that_cannot_be_drawn_are_refused(labels, wanted, balance, message) -> None:
    with pytest.raises(UserError, match=message):
        split_of(some(labels), wanted, balance)


def test_nothing_unlabelled_is_refused() -> None:
    with pytest.raises(UserError, match="there are no unlabelled images"):
        split_of(some([0, 1, 0, 1]), include=False)


def source(views: Views, seed: int = 0, policy: str = "paper") -> Source:
    dataset = some([0, 1] * 20)
    pool = pool_of(dataset, split_of(dataset, 6))
    drawing = Drawing(views, labelled=5, unlabelled=7, seed=seed, images=PRESETS[policy])
    return Source(dataset.kind.inputs(pool.unlabelled.numpy()), pool, drawing, torch.device("cpu"))


def test_batches_have_the_shapes_the_method_asked_for() -> None:
    batch = source(Views(weak=2, strong=3)).batch(0)
    assert batch.x.shape == (5, 3, 8, 8)
    assert batch.weak.shape == (2, 7, 3, 8, 8)
    assert batch.strong.shape == (3, 7, 3, 8, 8)
    assert batch.strong.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert (batch.y.shape, batch.labelled_rows.shape, batch.unlabelled_rows.shape) == ((5,), (5,), (7,))
    assert source(Views(weak=0, strong=0)).batch(0).weak.shape == (0, 7, 3, 8, 8)


def test_labels_belong_to_their_images_and_come_from_labelled_rows_only() -> None:
    made = source(Views())
    for step in range(20):
        batch = made.batch(step)
        assert set(batch.labelled_rows.tolist()) <= set(made.labelled_rows.tolist())
        assert torch.equal(batch.y, batch.labelled_rows % 2)


def test_batches_depend_on_seed_and_step_alone() -> None:
    first, second = source(Views(1, 3)), source(Views(1, 3))
    for step in (3, 0, 3):
        ours, again = first.batch(step), second.batch(step)
        assert all(torch.equal(getattr(ours, name), getattr(again, name)) for name in vars(ours))
    assert not torch.equal(first.batch(0).strong, first.batch(1).strong)
    assert not torch.equal(first.batch(0).strong, source(Views(1, 3), seed=1).batch(0).strong)
    assert first.generator(4).initial_seed() == second.generator(4).initial_seed() != first.generator(5).initial_seed()


def test_strong_views_of_one_image_differ() -> None:
    strong = source(Views(1, 3)).batch(0).strong
    assert not torch.equal(strong[0], strong[1])
    assert not torch.equal(strong[1], strong[2])


def test_plain_weak_views_are_the_normalised_images() -> None:
    made = source(Views(weak=1, weak_augment=False))
    batch = made.batch(0)
    pixels = made.images[batch.unlabelled_rows].permute(0, 3, 1, 2).double() / 255
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (made.mean, made.std))
    torch.testing.assert_close(batch.weak[0].double(), (pixels - mean) / std, rtol=1e-5, atol=1e-5)
