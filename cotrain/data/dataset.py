"""A data set: all its images in one tensor, their labels, and which rows were given for what."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from cotrain.types import UserError

UNLABELLED = -1


@dataclass(frozen=True)
class Dataset:
    name: str
    images: Tensor  # (N, h, w, c) uint8
    labels: Tensor  # (N,) int64, UNLABELLED where nobody said
    classes: tuple[str, ...]
    train: NDArray[np.int64]  # rows
    valid: NDArray[np.int64]
    test: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int, int]:
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every pixel, label and part: two data sets with the same one are the same."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.images.numpy(), self.labels.numpy(), self.train, self.valid, self.test):
            digest.update(str((array.shape, array.dtype)).encode())
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\0".join(self.classes).encode())
        return digest.hexdigest()

    def pixel_statistics(self, rows: NDArray[np.int64]) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel over these images, in [0, 1] units."""
        images = self.images.numpy()
        levels = np.arange(256) / 255
        mean, std = [], []
        for channel in range(images.shape[-1]):
            counts = sum(
                np.bincount(images[part, :, :, channel].ravel(), minlength=256)
                for part in np.array_split(rows, len(rows) // 4096 + 1)
            )
            share = counts / np.sum(counts)
            mean.append(float(levels @ share))
            std.append(float(np.sqrt((levels - mean[-1]) ** 2 @ share)))
        return mean, [value or 1.0 for value in std]


def from_arrays(
    images: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    valid: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    test: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    classes: tuple[str, ...] | None = None,
    name: str = "arrays",
) -> Dataset:
    """A data set from uint8 images (N, h, w) or (N, h, w, c) and integer labels, -1 where there is none."""
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
        raise UserError(f"{name}: the parts have images of different sizes ({shapes})")
    all_labels = np.concatenate(targets)
    if classes is None and all_labels.max() >= len(all_labels):
        raise UserError(
            f"{name}: there is a label {all_labels.max()} among {len(all_labels)} images; classes count from 0"
        )
    for part in ("valid", "test"):
        for row in np.flatnonzero(all_labels[rows[part]] == UNLABELLED)[:1]:
            raise UserError(f"{name}: {part} image {row} has no label (-1); only training images may lack one")
    classes = classes or tuple(str(number) for number in range(int(all_labels.max(initial=-1)) + 1))
    _check_classes(name, all_labels, targets[0], classes)
    return Dataset(
        name, torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(all_labels), tuple(map(str, classes)), **rows
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
            f"{what} labels have shape {targets.shape} of {targets.dtype}; they must be one whole number an image"
        )
    if targets.size and targets.max() > np.iinfo(np.int32).max:
        raise UserError(f"{what} labels go up to {targets.max()}; they must count classes from 0")
    if len(targets) != len(pixels):
        raise UserError(f"{what} has {len(pixels)} images but {len(targets)} labels")
    if len(pixels) == 0:
        raise UserError(f"{what} is empty: there is no image in it")
    return pixels, targets.astype(np.int64)


def _check_classes(
    name: str, labels: NDArray[np.int64], train_labels: NDArray[np.int64], classes: tuple[str, ...]
) -> None:
    if labels.min() < UNLABELLED or labels.max() >= len(classes):
        row = int(np.argmax((labels < UNLABELLED) | (labels >= len(classes))))
        raise UserError(
            f"{name}: row {row} has label {labels[row]}; labels run from 0 to {len(classes) - 1} "
            f"({len(classes)} classes), and -1 means unlabelled"
        )
    known = np.unique(train_labels[train_labels != UNLABELLED])
    if len(known) == 0:
        raise UserError(f"{name}: no training image has a label; a few of every class are needed")
    if len(known) == 1:
        raise UserError(
            f"{name}: every labelled training image is of class {classes[known[0]]}; two are needed at least"
        )
