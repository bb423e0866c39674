"""What a folder says about its images: which class each is of, if any, and what it is for."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cotrain.data.files import Found
from cotrain.data.settings import DataSettings
from cotrain.data.table import LabelRow, match, read_table
from cotrain.types import UserError

TRAIN, VALID, TEST = "train", "valid", "test"
PARTS = {"train": TRAIN, "training": TRAIN, "valid": VALID, "val": VALID, "validation": VALID, "test": TEST}
UNLABELLED_FOLDERS = {"unlabelled", "unlabeled", "_unlabelled", "_unlabeled"}
TABLE = "labels.csv"
WAYS = (
    "put some images in a folder per class beside a folder unlabelled/, or give a table of path and label "
    f"as {TABLE} in the folder or with --labels FILE"
)
WORDNET_ID = re.compile(r"n\d{8}")
MINI_CLASSES, MINI_IMAGES, MINI_SIZE = 100, 600, "84x84"


@dataclass(frozen=True)
class Layout:
    """Row by row, for each image file: its class, None if nobody said, and its part, None if it is left out."""

    words: str
    labels: Sequence[str | None]
    parts: Sequence[str | None]
    size: str | None = None  # what such images are usually resized to, if there is such a size
    notes: Sequence[str] = ()


def understand(folder: Path, images: Sequence[Found], settings: DataSettings) -> Layout:
    """Which of the known layouts this is: a table of labels, lists, train/ and test/, or a folder per class."""
    paths = [image.path for image in images]
    table = _table(folder, settings)
    if table is not None:
        layout = _by_table(folder, paths, table, settings)
    elif settings.path_column or settings.label_column:
        raise UserError(f"data.path_column and data.label_column are for a table, and {folder} has no {TABLE}")
    elif (folder / "train.csv").exists() and (folder / "test.csv").exists():
        layout = _by_lists(folder, paths, settings)
    elif {"train"} <= (tops := {path.split("/")[0] for path in paths}) <= PARTS.keys() | UNLABELLED_FOLDERS:
        layout = _by_parts(folder, paths, tops)
    else:
        layout = _by_class(folder, paths)
    if not any(label is not None and part == TRAIN for label, part in zip(layout.labels, layout.parts, strict=True)):
        raise UserError(f"none of the {len(paths):,} images of {folder} has a label: {WAYS}")
    return layout


def class_order(labels: Sequence[str | None]) -> tuple[str, ...]:
    """By number where all are numbers, else by name."""
    names = {label for label in labels if label is not None}
    return tuple(sorted(names, key=int) if all(re.fullmatch(r"\d{1,9}", name) for name in names) else sorted(names))


def _table(folder: Path, settings: DataSettings) -> Path | None:
    if settings.labels_file is None:
        return folder / TABLE if (folder / TABLE).exists() else None
    for place in (Path(settings.labels_file), folder / settings.labels_file):
        if place.is_file():
            return place
    raise UserError(f"there is no label table {settings.labels_file}, nor {folder / settings.labels_file}")


def _by_table(folder: Path, paths: list[str], table: Path, settings: DataSettings) -> Layout:
    labels = _labels_of(table, folder, paths, settings)
    parts = [PARTS.get(path.split("/")[0], TRAIN) if "/" in path else TRAIN for path in paths]
    layout = Layout(f"a folder with labels in {table.name}", [labels.get(row) for row in range(len(paths))], parts)
    return _without_unlabelled_tests(layout)


def _by_lists(folder: Path, paths: list[str], settings: DataSettings) -> Layout:
    """train.csv, test.csv and perhaps val.csv beside the images; images in no list are unlabelled."""
    tables = [(PARTS[name], folder / f"{name}.csv") for name in PARTS if (folder / f"{name}.csv").exists()]
    labels: dict[int, str] = {}
    parts: list[str | None] = [TRAIN] * len(paths)
    classes: dict[str, set[str]] = {}
    for part, table in tables:
        listed = _labels_of(table, folder, paths, settings)
        for row in listed.keys() & labels.keys():
            raise UserError(f"{paths[row]} is in {table} and in another list too; leave it in one")
        labels |= listed
        classes[part] = set(listed.values())
        for row in listed:
            parts[row] = part
    layout = Layout(
        f"lists {', '.join(table.name for _, table in tables)} beside the images",
        [labels.get(row) for row in range(len(paths))],
        parts,
    )
    return _as_mini_imagenet(paths, layout) if not classes[TRAIN] & classes[TEST] else _without_unlabelled_tests(layout)


def _by_parts(folder: Path, paths: list[str], tops: set[str]) -> Layout:
    labels: list[str | None] = []
    for path in paths:
        top, *inside = path.split("/")
        named = top in PARTS and len(inside) > 1 and inside[0] not in UNLABELLED_FOLDERS
        labels.append(inside[0] if named else None)
    parts = [PARTS.get(path.split("/")[0], TRAIN) for path in paths]
    layout = Layout(f"{', '.join(f'{top}/' for top in sorted(tops))} with a folder per class", labels, parts)
    return _without_unlabelled_tests(layout)


def _by_class(folder: Path, paths: list[str]) -> Layout:
    tops = [path.split("/")[0] if "/" in path else None for path in paths]
    labels = [None if top in UNLABELLED_FOLDERS else top for top in tops]
    unlabelled = sorted({f"{top}/" for top in tops if top in UNLABELLED_FOLDERS})
    loose = tops.count(None)
    beside = " and ".join([*unlabelled, *(["files in no folder, which are unlabelled"] if loose else [])])
    layout = Layout(f"a folder per class{f' beside {beside}' if beside else ''}", labels, [TRAIN] * len(paths))
    counts = Counter(label for label in labels if label is not None)
    mini = len(counts) == MINI_CLASSES and all(map(WORDNET_ID.fullmatch, counts))
    return _as_mini_imagenet(paths, layout) if mini and set(counts.values()) == {MINI_IMAGES} else layout


def _as_mini_imagenet(paths: Sequence[str], layout: Layout) -> Layout:
    """All classes are trained on, and of each the last sixth, 100 of 600, is the test set.

    The lists in circulation are for few-shot learning and put whole classes aside.
    """
    rows: dict[str, list[int]] = {}
    for row in sorted(range(len(paths)), key=lambda row: paths[row].rsplit("/", 1)[-1]):
        if (label := layout.labels[row]) is not None:
            rows.setdefault(label, []).append(row)
    parts: list[str | None] = [TRAIN] * len(paths)
    for of_class in rows.values():
        for row in of_class[len(of_class) - len(of_class) // 6 :]:
            parts[row] = TEST
    words = f"{layout.words}, as Mini-ImageNet: the last sixth of every class, by file name, is the test set"
    return replace(layout, words=words, parts=parts, size=MINI_SIZE)


def _labels_of(table: Path, folder: Path, paths: list[str], settings: DataSettings) -> Mapping[int, str]:
    rows = read_table(table, path_column=settings.path_column, label_column=settings.label_column)
    labels, missing = match(rows, paths, table=table, folder=folder)
    if missing and not settings.skip_unreadable:
        raise UserError(_missing(table, folder, missing))
    return labels


def _missing(table: Path, folder: Path, missing: Sequence[LabelRow]) -> str:
    more = f" (and {len(missing) - 1:,} more rows)" if len(missing) > 1 else ""
    return (
        f"{table}, line {missing[0].line}: there is no image {missing[0].path} in {folder}{more}; "
        "correct the table, or leave such rows out with --skip-unreadable"
    )


def _without_unlabelled_tests(layout: Layout) -> Layout:
    """Images to test on are of no use without a label."""
    useless = [label is None and part in (VALID, TEST) for label, part in zip(layout.labels, layout.parts, strict=True)]
    if not any(useless):
        return layout
    parts = [None if out else part for part, out in zip(layout.parts, useless, strict=True)]
    note = f"without a label, and left out: {sum(useless):,} valid and test images"
    return replace(layout, parts=parts, notes=[*layout.notes, note])
