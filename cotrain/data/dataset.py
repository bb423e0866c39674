"""A dataset: its images, in memory or in one file, their labels, and which rows are for training and testing."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cotrain.data.bank import Bank
from cotrain.data.decode import content_hash
from cotrain.data.feature_table import Features
from cotrain.data.imagefile import Images
from cotrain.data.kinds import Kind, kind_of
from cotrain.types import Unit, UserError

UNLABELLED = -1
LONGEST_NAME = 1_000  # characters of a class name


@dataclass(frozen=True)
class Dataset:
    """Images with their labels, and which of them are for training, validation and testing."""

    name: str
    images: Images | Features  # (N, h, w, c) uint8, or the rows of a table
    hashes: NDArray[np.uint64]  # (N,) one per image, of its pixels, or per row of a table
    labels: Tensor  # (N,) int64, UNLABELLED if there is no label
    classes: tuple[str, ...]
    train: NDArray[np.int64]  # rows
    valid: NDArray[np.int64]
    test: NDArray[np.int64]
    source: str | None = None  # the argument for `open_data`; None: arrays
    layout: str = "arrays"  # how the source is organised, in words
    mirror: bool = True  # whether a mirrored image keeps its class
    paths: tuple[str, ...] = ()  # the file of each row, if rows are files
    sizes: Mapping[tuple[int, int, str], int] = field(default_factory=dict)  # number of files by height, width and mode
    unreadable: Mapping[str, str] = field(default_factory=dict)  # file -> why it could not be read
    missing: tuple[str, ...] = ()  # label table rows whose file does not exist
    notes: tuple[str, ...] = ()  # what the user should know about how the files were read
    recipe: str | None = None  # the recipe that these data have of their own
    bank: Bank | None = None  # the features of the images, if the network has a frozen trunk

    @property
    def shape(self) -> tuple[int, int, int]:
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    @cached_property
    def kind(self) -> Kind:
        return kind_of(self.images, self.bank, self.name)

    @property
    def unit(self) -> Unit:
        return self.kind.unit

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all pixels, labels and parts: datasets with the same fingerprint are the same."""
        digest = hashlib.blake2b(str(self.shape).encode(), digest_size=16)
        for array in (self.hashes, self.labels.numpy(), self.train, self.valid, self.test):
            digest.update(str((array.shape, array.dtype)).encode())
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\0".join(self.classes).encode(errors="surrogateescape"))
        return digest.hexdigest()


def from_arrays(
    images: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    valid: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    test: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    classes: tuple[str, ...] | None = None,
    name: str = "arrays",
    source: str | None = None,
    layout: str = "arrays",
    mirror: bool = True,
    recipe: str | None = None,
) -> Dataset:
    """Make a dataset from uint8 images (N, h, w) or (N, h, w, c) and integer labels, with -1 for unlabelled images."""
    parts = {"train": (images, labels), "valid": valid, "test": test}
    pixels, targets, rows, start = [], [], {}, 0
    for part, pair in parts.items():
        checked = _check(f"{name}: {part}", *pair) if pair is not None else None
        count = len(checked[0]) if checked else 0
        rows[part] = np.arange(start, start + count)
        start += count
        if checked:
            pixels.append(checked[0])
            targets.append(checked[1])
    if len({array.shape[1:] for array in pixels}) > 1:
        shapes = ", ".join("x".join(map(str, array.shape[1:])) for array in pixels)
        raise UserError(
            f"{name}: training, validation and test images differ in size ({shapes}); resize them to one size"
        )
    all_labels = np.concatenate(targets)
    if classes is None and all_labels.max() >= len(all_labels):
        raise UserError(
            f"{name}: label {all_labels.max()} is too large for {len(all_labels)} images; number the classes from 0"
        )
    for part in ("valid", "test"):
        for row in np.flatnonzero(all_labels[rows[part]] == UNLABELLED)[:1]:
            raise UserError(f"{name}: {part} image {row} has no label (-1); only training images may be unlabelled")
    classes = classes or tuple(str(number) for number in range(int(all_labels.max(initial=-1)) + 1))
    _check_labels(name, all_labels, classes)
    check_names(name, classes)
    check_known(name, targets[0], classes, Unit.IMAGE)
    all_pixels = np.concatenate(pixels)
    return Dataset(
        name=name,
        images=torch.from_numpy(all_pixels),
        hashes=np.array([content_hash(image) for image in all_pixels], np.uint64),
        labels=torch.from_numpy(all_labels),
        classes=tuple(map(str, classes)),
        train=rows["train"],
        valid=rows["valid"],
        test=rows["test"],
        source=source,
        layout=layout,
        mirror=mirror,
        recipe=recipe,
    )


def _check(
    what: str, images: ArrayLike | Tensor, labels: ArrayLike | Tensor
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels, targets = np.asarray(images), np.asarray(labels)
    if pixels.dtype != np.uint8:
        raise UserError(f"{what} images are {pixels.dtype}; they must be uint8, 0 to 255")
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or 0 in pixels.shape[1:]:
        raise UserError(f"{what} images have shape {pixels.shape}; they must be (N, h, w) or (N, h, w, channels)")
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise UserError(
            f"{what} labels have shape {targets.shape} of {targets.dtype}; they must be one integer per image"
        )
    if targets.size and targets.max() > np.iinfo(np.int32).max:
        raise UserError(f"{what} labels go up to {targets.max()}; number the classes from 0")
    if len(targets) != len(pixels):
        raise UserError(f"{what} has {len(pixels)} images but {len(targets)} labels")
    if len(pixels) == 0:
        raise UserError(f"{what} contains no images")
    return pixels, targets.astype(np.int64)


def _check_labels(name: str, labels: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    if labels.min() < UNLABELLED or labels.max() >= len(classes):
        row = int(np.argmax((labels < UNLABELLED) | (labels >= len(classes))))
        raise UserError(
            f"{name}: row {row} has label {labels[row]}; labels run from 0 to {len(classes) - 1} "
            f"({len(classes)} classes), and -1 means unlabelled"
        )


def check_names(name: str, classes: Sequence[str]) -> None:
    """Class names are printed, drawn and written to files, so they must be text of a reasonable length."""
    for each in map(str, classes):
        if len(each) > LONGEST_NAME:
            raise UserError(
                f"{name}: the class {each[:40]!r}... has a name of {len(each):,} characters; at most {LONGEST_NAME} "
                "are allowed, so check which column holds the labels"
            )
        try:
            each.encode(errors="surrogateescape")  # bytes of a folder's name that are not Unicode
        except UnicodeEncodeError:
            raise UserError(f"{name}: the name of class {each!r} is not valid Unicode; rename it") from None


def check_known(name: str, train_labels: NDArray[np.int64], classes: tuple[str, ...], unit: Unit) -> None:
    """Training needs labelled images, or rows, of at least two classes."""
    known = np.unique(train_labels[train_labels != UNLABELLED])
    if len(known) == 0:
        raise UserError(f"{name}: no training {unit} has a label; label a few {unit.many} of every class")
    if len(known) == 1:
        raise UserError(
            f"{name}: all labelled training {unit.many} have class {classes[known[0]]}; at least two classes are needed"
        )
