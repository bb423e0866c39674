"""Data for `benchmarks.robustness`: real sets with junk from other sets, unequal classes, or wrong labels."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from cotrain import Config, Dataset, from_arrays
from cotrain.config.defaults import configured, opened
from cotrain.data import Split
from cotrain.training.experiment import Prepared

Rows = NDArray[np.int64]
Pixels = NDArray[np.uint8]
JUNK = 1_000
SIDE = 128  # of PlantVillage and its junk, so that the features take less time


@dataclass(frozen=True)
class Real:
    """A set whose training images end with junk, which has no label."""

    dataset: Dataset
    config: Config

    @property
    def labels(self) -> Rows:
        return self.dataset.labels.numpy()

    @property
    def good(self) -> Rows:
        """The training images of the classes."""
        return self.dataset.train[self.labels[self.dataset.train] >= 0]

    @property
    def junk(self) -> Rows:
        return self.dataset.train[self.labels[self.dataset.train] < 0]

    def split(self, labelled: Rows, unlabelled: Rows) -> Split:
        return Split(
            name="spoiled",
            source=None,
            fingerprint=self.dataset.fingerprint,
            labelled=tuple(np.sort(labelled).tolist()),
            unlabelled=tuple(np.union1d(labelled, unlabelled).tolist()),
            valid=(),
            test=tuple(self.dataset.test.tolist()),
        )


def prepared(name: str, data: Path, console: Console) -> Real:
    dataset = {"cifar10": cifar10, "plantvillage": plantvillage}[name](data)
    config = configured(dataset, None, "paper", {})
    return Real(Prepared(config, dataset, console=console).with_bank(dataset), config)


def cifar10(data: Path) -> Dataset:
    """1,500 training and 1,000 test images; junk from CIFAR-100 and SVHN, half each."""
    images, labels, classes = _npz(data / "cifar10.npz", "train")
    test_images, test_labels, _ = _npz(data / "cifar10.npz", "test")
    chosen = _drawn(len(images), 1_500, 0)
    others = [_npz(data / f"{name}.npz", "train")[0] for name in ("cifar100", "svhn")]
    junk = np.concatenate([some[_drawn(len(some), JUNK // 2, seed)] for seed, some in enumerate(others, start=1)])
    held = _drawn(len(test_images), 1_000, 4)
    test = (test_images[held], test_labels[held])
    return _with_junk(images[chosen], labels[chosen], junk, test, classes, "cifar10")


def plantvillage(data: Path) -> Dataset:
    """1,000 training and 700 test images; junk from Mini-ImageNet and CIFAR-10, half each."""
    whole = opened(str(data / "plantvillage"), None, {}, None, Console(quiet=True))
    images, labels = _resized(whole.images[np.arange(len(whole.images))].numpy()), whole.labels.numpy()
    order = np.random.default_rng(0).permutation(len(images))
    files = sorted((data / "miniimagenet" / "train").rglob("*.jpg"))
    photographs = [np.asarray(Image.open(files[row]).convert("RGB")) for row in _drawn(len(files), JUNK // 2, 1)]
    small = _npz(data / "cifar10.npz", "train")[0]
    junk = np.concatenate([_resized(photographs), _resized(small[_drawn(len(small), JUNK // 2, 2)])])
    train, test = order[:1_000], order[1_000:1_700]
    held = (images[test], labels[test])
    return _with_junk(images[train], labels[train], junk, held, whole.classes, "plantvillage")


def _with_junk(
    images: Pixels, labels: Rows, junk: Pixels, test: tuple[Pixels, Rows], classes: tuple[str, ...], name: str
) -> Dataset:
    junk = junk[np.random.default_rng(3).permutation(len(junk))]
    every = np.concatenate([labels, np.full(len(junk), -1)])
    return from_arrays(np.concatenate([images, junk]), every, test=test, classes=classes, name=name)


def _npz(path: Path, part: str) -> tuple[Pixels, Rows, tuple[str, ...]]:
    with np.load(path) as file:
        labels = file[f"{part}_labels"].ravel().astype(np.int64)
        return file[f"{part}_images"], labels, tuple(map(str, file["classes"]))


def _drawn(among: int, count: int, seed: int) -> Rows:
    return np.random.default_rng(seed).permutation(among)[:count]


def _resized(images: "list[Pixels] | Pixels") -> Pixels:
    def resized(image: Pixels) -> Pixels:
        return np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC))

    return np.stack([resized(image) for image in images])


def per_class(real: Real, rows: Rows, counts: "Rows | int", rng: np.random.Generator) -> Rows:
    """So many random rows of each class, or all of a smaller class."""
    classes = len(real.dataset.classes)
    wanted = np.broadcast_to(counts, classes)
    shuffled = rng.permutation(rows)
    return np.concatenate([shuffled[real.labels[shuffled] == index][: wanted[index]] for index in range(classes)])


def mislabelled(real: Real, labelled: Rows, share: float, rng: np.random.Generator) -> tuple[Dataset, Rows]:
    """The dataset with this share of the labels replaced by others, and the rows of these."""
    from dataclasses import replace

    wrong = rng.permutation(labelled)[: round(share * len(labelled))]
    labels, classes = real.dataset.labels.clone(), len(real.dataset.classes)
    labels[wrong] = (labels[wrong] + torch.from_numpy(rng.integers(1, classes, len(wrong)))) % classes
    return replace(real.dataset, labels=labels), np.sort(wrong)


Draw = Callable[[Real, np.random.Generator], tuple[Rows, Rows]]
