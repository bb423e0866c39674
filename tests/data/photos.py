"""Folders of images to test with, and questions about what became of them."""

from pathlib import Path

import numpy as np
from PIL import Image

from cotrain import Dataset, open_data
from cotrain.data import DataSettings

RNG = np.random.default_rng(0)


def save(path: Path, size: tuple[int, int] = (12, 12), mode: str = "RGB", seed: int | None = None) -> np.ndarray:
    """An image of noise, all different unless the seed is the same."""
    rng = RNG if seed is None else np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path)
    return pixels


def by_class(folder: Path, names: tuple[str, ...] = ("cat", "dog"), each: int = 6, unlabelled: int = 8) -> Path:
    for name in names:
        for number in range(each):
            save(folder / name / f"{number}.png")
    for number in range(unlabelled):
        save(folder / "unlabelled" / f"{number}.png")
    return folder


def flat(folder: Path, count: int = 8) -> Path:
    for number in range(count):
        save(folder / f"{number}.png")
    return folder


def label_of(dataset: Dataset, path: str) -> str | None:
    label = int(dataset.labels[dataset.paths.index(path)])
    return None if label < 0 else dataset.classes[label]


def part_of(dataset: Dataset, path: str) -> str | None:
    row = dataset.paths.index(path)
    return next((part for part in ("train", "valid", "test") if row in getattr(dataset, part)), None)


def open_with(folder: Path, **settings: object) -> Dataset:
    return open_data(folder, DataSettings(**settings))
