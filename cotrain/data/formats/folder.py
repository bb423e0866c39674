"""A folder of images, a few of them labelled, as a dataset."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from cotrain.data.cache import decoded
from cotrain.data.dataset import UNLABELLED, Dataset, check_names
from cotrain.data.format import AFTER_OTHERS, DataFormat, Request
from cotrain.data.layout import TEST, TRAIN, VALID, class_order, understand
from cotrain.data.settings import DataSettings
from cotrain.data.workers import HIDDEN, Listing, listed, no_image, walk
from cotrain.types import UserError

TOLERATED = 0.1  # fraction of unreadable images
LINKS = "left out, because they are links out of the folder"


class Folder(DataFormat):
    order = AFTER_OTHERS
    listed = "a folder of images"

    def recognises(self, source: str) -> bool:
        return Path(source).is_dir()

    def open(self, request: Request) -> Dataset:
        dataset = load_folder(request.path, request.settings, request.memory, request.console)
        if not request.settings.skip_unreadable:
            check_complete(dataset)
        return dataset


def load_folder(folder: Path, settings: DataSettings, memory: float, console: Console) -> Dataset:
    """Open a folder. Decoded images that need more than `memory` GB stay on disk and are read as they are used."""
    images = listed(walk(folder, console, follow_links=settings.follow_links))
    if not images.paths:
        raise UserError(no_image(folder, len(images.outside)))
    layout = understand(folder, images.paths, settings)
    stored = decoded(folder, images, settings.size or layout.size or settings.largest, console)
    unreadable = stored.facts.errors
    readable = np.array([path not in unreadable for path in images.paths])
    parts = np.array([part or "" for part in layout.parts])
    classes = class_order([label for label, part in zip(layout.labels, layout.parts, strict=True) if part])
    check_names(str(folder), classes)
    number = {name: index for index, name in enumerate(classes)}
    labels = np.array([number.get(label, UNLABELLED) for label in layout.labels], np.int64)  # type: ignore[arg-type]
    labels[~readable] = UNLABELLED
    rows = {part: np.flatnonzero(readable & (parts == part)) for part in (TRAIN, VALID, TEST)}
    return Dataset(
        name=folder.resolve().name,
        images=stored if stored.bytes > memory * 1e9 else stored.resident(),
        hashes=stored.hashes,
        labels=torch.from_numpy(labels),
        classes=classes,
        train=rows[TRAIN],
        valid=rows[VALID],
        test=rows[TEST],
        source=os.fspath(folder.resolve()),
        layout=layout.words,
        paths=tuple(images.paths),
        sizes=stored.facts.sizes,
        unreadable=unreadable,
        missing=tuple(layout.missing),
        notes=(*layout.notes, *_left_out(images.outside), *_ignored(images.others), *_empty(folder, images)),
    )


def check_complete(dataset: Dataset) -> None:
    """Refuse a folder with missing files or too many unreadable ones."""
    if dataset.missing:
        more = f" (and {len(dataset.missing) - 1:,} more rows)" if len(dataset.missing) > 1 else ""
        links = (
            ", use --follow-links if it is a link out of the folder" if any(LINKS in n for n in dataset.notes) else ""
        )
        raise UserError(
            f"{dataset.missing[0]} is not an image in {dataset.source}{more}; "
            f"correct the table{links}, or use --skip-unreadable to leave out such rows"
        )
    if len(dataset.unreadable) > TOLERATED * len(dataset.paths):
        examples = "; ".join(f"{path}: {why}" for path, why in list(dataset.unreadable.items())[:3])
        raise UserError(
            f"{len(dataset.unreadable):,} of the {len(dataset.paths):,} images in {dataset.source} are unreadable "
            f"({examples}); `cotrain data check` lists them, and --skip-unreadable leaves them out"
        )


def _empty(folder: Path, images: Listing) -> list[str]:
    """A note on folders without images, which may be meant as classes."""
    used = {path.partition("/")[0] for path in images.paths if "/" in path} | set(images.outside)
    empty = sorted(
        entry.name
        for entry in os.scandir(folder)
        if os.path.isdir(entry.path) and entry.name not in used and not entry.name.startswith(HIDDEN)
    )
    return [f"folders without images: {', '.join(empty)}"] if empty else []


def _left_out(links: Sequence[str]) -> list[str]:
    if not links:
        return []
    more = f" and {len(links) - 3:,} more" if len(links) > 3 else ""
    return [f"{LINKS}: {', '.join(links[:3])}{more} (--follow-links uses them)"]


def _ignored(files: Sequence[str]) -> list[str]:
    others = [path for path in files if not path.endswith((".csv", ".jsonl"))]
    if not others:
        return []
    more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
    return [f"ignored, because their names are not those of images: {', '.join(others[:3])}{more}"]
