"""Recognise the layout of a folder: the class of each image, if any, and whether it is for training or testing."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sys import intern

from cotrain.data.label_table import match, read_table
from cotrain.data.settings import DataSettings
from cotrain.storage.regular import leads_out
from cotrain.types import UserError

TRAIN, VALID, TEST = "train", "valid", "test"
PARTS = {"train": TRAIN, "training": TRAIN, "valid": VALID, "val": VALID, "validation": VALID, "test": TEST}
UNLABELLED_FOLDERS = {"unlabelled", "unlabeled", "_unlabelled", "_unlabeled"}
TABLE = "labels.csv"
NUMBER = re.compile(r"\d{1,9}")
WORDNET_ID = re.compile(r"n\d{8}")
MINI_CLASSES, MINI_IMAGES, MINI_SIZE = 100, 600, "84x84"


@dataclass(frozen=True)
class Layout:
    """For each image file, its class (None: unlabelled) and its part (None: left out)."""

    words: str
    labels: Sequence[str | None]
    parts: Sequence[str | None]
    size: str | None = None  # the usual size for such images, if there is one
    missing: Sequence[str] = ()  # table rows whose file does not exist
    notes: Sequence[str] = ()


def understand(folder: Path, paths: Sequence[str], settings: DataSettings) -> Layout:
    """Recognise one of the layouts: a label table, lists, train/ and test/, or one folder per class."""
    table = _table(folder, settings)
    if table is not None:
        layout = _by_table(folder, paths, table, settings)
    elif _own(folder, "train.csv", settings) and _own(folder, "test.csv", settings):
        layout = _by_lists(folder, paths, settings)
    elif settings.path_column or settings.label_column:
        raise UserError(
            f"data.path_column and data.label_column need a label table, but {folder} has no {TABLE}; use --labels FILE"
        )
    elif _are_parts({path.split("/")[0] for path in paths if "/" in path}):
        layout = _by_parts(paths)
    else:
        layout = _by_class(paths)
    return _with_notes_on_classes(layout)


def _are_parts(tops: set[str]) -> bool:
    """Whether the folders are parts such as train/ and test/. A class may also be called train, if there are others."""
    named = {top.casefold() for top in tops}
    return any(PARTS.get(top) == TRAIN for top in named) and named <= PARTS.keys() | UNLABELLED_FOLDERS


def class_order(labels: Sequence[str | None]) -> tuple[str, ...]:
    """Class names, sorted by number if all of them are numbers, otherwise by name."""
    names = sorted({label for label in labels if label is not None})
    return tuple(sorted(names, key=int) if all(map(NUMBER.fullmatch, names)) else names)


def _table(folder: Path, settings: DataSettings) -> Path | None:
    if settings.labels_file is None:
        return _own(folder, TABLE, settings)
    for place in (Path(settings.labels_file), folder / settings.labels_file):
        if place.is_file():
            return place
    raise UserError(f"there is no label table {settings.labels_file} or {folder / settings.labels_file}")


def _own(folder: Path, name: str, settings: DataSettings) -> Path | None:
    """A table that is found in the folder, and that nobody named."""
    if (folder / name).exists() and not settings.follow_links and leads_out(folder / name, os.path.realpath(folder)):
        raise UserError(
            f"{folder / name} is a link out of the folder; use --follow-links, or put the table itself there"
        )
    return folder / name if (folder / name).exists() else None


def _by_table(folder: Path, paths: Sequence[str], table: Path, settings: DataSettings) -> Layout:
    listed, missing = _listed(table, folder, paths, settings)
    parts = [part_of(path) for path in paths]
    labels = [listed.get(row) for row in range(len(paths))]
    return _without_unlabelled_tests(Layout(f"a folder with labels in {table.name}", labels, parts, missing=missing))


def _by_lists(folder: Path, paths: Sequence[str], settings: DataSettings) -> Layout:
    """train.csv, test.csv and optionally val.csv next to the images; images in no list are unlabelled."""
    tables = [(PARTS[name], table) for name in PARTS if (table := _own(folder, f"{name}.csv", settings))]
    labels: dict[int, str | None] = {}
    parts: list[str | None] = [TRAIN] * len(paths)
    missing: list[str] = []
    for part, table in tables:
        listed, absent = _listed(table, folder, paths, settings)
        for row in listed.keys() & labels.keys():
            raise UserError(f"{paths[row]} is in {table} and also in another list; keep it in only one")
        labels |= listed
        missing += absent
        for row in listed:
            parts[row] = part
    layout = Layout(
        f"the lists {', '.join(table.name for _, table in tables)} next to the images",
        [labels.get(row) for row in range(len(paths))],
        parts,
        missing=missing,
    )
    classes = {part: {labels[row] for row in labels if parts[row] == part} - {None} for part in (TRAIN, TEST)}
    few_shot = classes[TRAIN] and classes[TEST] and not classes[TRAIN] & classes[TEST]
    return _as_mini_imagenet(paths, layout) if few_shot else _without_unlabelled_tests(layout)


def part_of(path: str) -> str:
    top, slash, _ = path.partition("/")
    return PARTS.get(top.casefold(), TRAIN) if slash else TRAIN


def _is_unlabelled(folder: str) -> bool:
    return folder.casefold() in UNLABELLED_FOLDERS


def _by_parts(paths: Sequence[str]) -> Layout:
    labels: list[str | None] = []
    for path in paths:
        top, *inside = path.split("/")
        named = not _is_unlabelled(top) and len(inside) > 1 and not _is_unlabelled(inside[0])
        labels.append(intern(inside[0]) if named else None)
    tops = sorted({f"{path.split('/')[0]}/" for path in paths if "/" in path})
    layout = Layout(f"{', '.join(tops)} with one folder per class", labels, [part_of(path) for path in paths])
    return _without_unlabelled_tests(layout)


def _by_class(paths: Sequence[str]) -> Layout:
    tops = [intern(path.split("/")[0]) if "/" in path else None for path in paths]
    labels = [None if top is None or _is_unlabelled(top) else top for top in tops]
    unlabelled = sorted({f"{top}/" for top in tops if top is not None and _is_unlabelled(top)})
    beside = " and ".join([*unlabelled, *(["files outside any folder, which are unlabelled"] if None in tops else [])])
    layout = Layout(f"one folder per class{f', next to {beside}' if beside else ''}", labels, [TRAIN] * len(paths))
    counts = Counter(label for label in labels if label is not None)
    mini = len(counts) == MINI_CLASSES and all(map(WORDNET_ID.fullmatch, counts))
    return _as_mini_imagenet(paths, layout) if mini and set(counts.values()) == {MINI_IMAGES} else layout


def _as_mini_imagenet(paths: Sequence[str], layout: Layout) -> Layout:
    """Train on all classes and test on the last sixth (100 of 600) of each.

    The lists in circulation are for few-shot learning and hold out whole classes.
    """
    rows: dict[str, list[int]] = {}
    for row in sorted(range(len(paths)), key=lambda row: paths[row].rsplit("/", 1)[-1]):
        if (label := layout.labels[row]) is not None:
            rows.setdefault(label, []).append(row)
    parts: list[str | None] = [TRAIN] * len(paths)
    for of_class in rows.values():
        for row in of_class[len(of_class) - len(of_class) // 6 :]:
            parts[row] = TEST
    words = f"{layout.words}, treated as Mini-ImageNet: the last sixth of every class, by file name, is the test set"
    return replace(layout, words=words, parts=parts, size=MINI_SIZE)


def _listed(
    table: Path, folder: Path, paths: Sequence[str], settings: DataSettings
) -> tuple[dict[int, str | None], list[str]]:
    """The labels that a table gives to files, and the rows whose file does not exist."""
    rows = read_table(table, path_column=settings.path_column, label_column=settings.label_column)
    listed, missing = match(rows, paths, table=table, folder=folder)
    return listed, [f"{table}, line {row.line}: {row.path}" for row in missing]


def _with_notes_on_classes(layout: Layout) -> Layout:
    """Add notes on class names that look like mistakes."""
    names = {label for label in layout.labels if label is not None}
    notes = list(layout.notes)
    if odd := sorted(name for name in names if name.casefold() in PARTS):
        notes.append(f"treated as classes, not as parts, because there are other folders: {', '.join(odd)}")
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(str(int(name)) if NUMBER.fullmatch(name) else name.casefold(), []).append(name)
    twins = [", ".join(several) for several in alike.values() if len(several) > 1]
    notes += [f"treated as different classes, although the names look alike: {several}" for several in twins]
    return replace(layout, notes=notes)


def _without_unlabelled_tests(layout: Layout) -> Layout:
    """Leave out unlabelled validation and test images: they cannot be scored."""
    useless = [label is None and part in (VALID, TEST) for label, part in zip(layout.labels, layout.parts, strict=True)]
    if not any(useless):
        return layout
    parts = [None if out else part for part, out in zip(layout.parts, useless, strict=True)]
    note = f"{sum(useless):,} validation or test images have no label and are left out"
    return replace(layout, parts=parts, notes=[*layout.notes, note])
