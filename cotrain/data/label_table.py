"""Read label tables (CSV files of image paths and classes) and match their rows to image files."""

import codecs
import csv
import io
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from cotrain.data.decode import SUFFIXES
from cotrain.storage.cells import class_of, from_safe_path, nfc
from cotrain.storage.reading import read_bytes, reason
from cotrain.types import UserError

DELIMITERS = (",", ";", "\t", "|")
MINUS_ONE = "-1"  # unlabelled too, if all other classes are numbers

# Guesses for column names, in order of preference.
PATH_NAMES = (
    *("path", "filepath", "file_path", "image_path", "img_path", "filename", "file_name", "image_name", "img_name"),
    *("file", "image_file", "image", "images", "img", "image_id", "img_id", "image_index", "file_id", "name", "id"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "class_name", "classname", "class_label", "label_name", "category", "category_name"),
    *("target", "species", "breed", "diagnosis", "dx", "ground_truth", "class_id", "label_id", "category_id", "y"),
)
ASK = "pass --data.path_column NAME --data.label_column NAME"


@dataclass(frozen=True)
class LabelRow:
    line: int  # counted from 1, as in an editor
    path: str  # as written
    label: str | None  # None: unlabelled


@dataclass(frozen=True)
class Sheet:
    """A label table as it is written, so that some of its cells can be changed and all others kept."""

    delimiter: str
    header: list[str] | None  # None: the first line is a row
    path_at: int  # column
    label_at: int
    records: list[list[str]]  # cells, with those of the header above
    rows: list[LabelRow]  # what the records mean


def read_table(file: Path, *, path_column: str | None = None, label_column: str | None = None) -> list[LabelRow]:
    """The rows of a CSV file. The delimiter and the columns are guessed from the first line."""
    return read_sheet(file, path_column=path_column, label_column=label_column).rows


def read_sheet(file: Path, *, path_column: str | None = None, label_column: str | None = None) -> Sheet:
    text = text_of(file)
    delimiter = guess_delimiter(text, [name for name in (path_column, label_column) if name is not None])
    numbered = list(records_of(file, text, delimiter))
    if not numbered:
        raise UserError(f"{file} is empty; it needs a column of image files and a column of labels")
    first, header = numbered[0][1], None
    if path_column is None and label_column is None and _is_image(first[0]):
        path_at, label_at = 0, 1
    else:
        path_at, label_at = _columns(file, first, path_column, label_column)
        header, numbered = first, numbered[1:]
    rows = []
    for line, cells in numbered:
        where = f"{file}, line {line}"
        if len(cells) <= max(path_at, label_at):
            raise UserError(
                f"{where} has no cell for the {'path' if len(cells) <= path_at else 'label'}; "
                f"separate cells with {delimiter!r}, even before an empty label"
            )
        if _has_text(cells[len(first) :]):
            raise UserError(
                f"{where} has {len(cells)} cells but the first line has {len(first)}; "
                f"quote any cell that contains {delimiter!r}"
            )
        if not cells[path_at].strip():
            raise UserError(f"{where} has no image path; add one or remove the line")
        rows.append(LabelRow(line, cells[path_at], class_of(cells[label_at])))
    if not rows:
        raise UserError(f"{file} has no rows below its header; add one line per labelled image")
    records = [cells for _, cells in numbered]
    minus_one = [cells[label_at].strip() == MINUS_ONE for cells in records]
    return Sheet(delimiter, header, path_at, label_at, records, _without(minus_one, rows))


def _without(minus_one: list[bool], rows: list[LabelRow]) -> list[LabelRow]:
    """If classes are numbers, -1 means unlabelled, as in scikit-learn. The class '-1 has an apostrophe."""
    each = list(zip(minus_one, rows, strict=True))
    numbers = all(is_one or row.label.isdigit() for is_one, row in each if row.label is not None)
    return [replace(row, label=None) if numbers and is_one else row for is_one, row in each]


def text_of(file: Path) -> str:
    try:
        data = read_bytes(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {reason(error)}") from error
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    if "\0" in data.decode(encoding, errors="replace"):
        raise UserError(f"{file} is not a CSV text file (it has NUL bytes); export the table as CSV in UTF-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode(error.encoding, errors="replace")
        line = len(list(io.StringIO(before + "?", newline="")))
        raise UserError(
            f"{file}, line {line} has a byte that is not {error.encoding.upper()}; save the table as CSV in UTF-8"
        ) from error


def _has_text(cells: list[str]) -> bool:
    return any(map(str.strip, cells))


def records_of(file: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The first line number and the cells of every non-empty row."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{file}, line {line} is not valid CSV ({error}); check its quotation marks") from error
        if _has_text(cells):
            yield line, cells


def guess_delimiter(text: str, given: Sequence[str]) -> str:
    """The delimiter that yields the most known column names in the first line, then the most cells."""
    names = {*PATH_NAMES, *LABEL_NAMES, *map(_plain, given)}

    def fit(delimiter: str) -> tuple[int, int]:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            cells: list[str] = next(filter(_has_text, rows), [])
        except csv.Error:
            return 0, 0
        return sum(_plain(cell) in names or _is_image(cell) for cell in cells), len(cells)

    return max(DELIMITERS, key=fit)


def _columns(file: Path, header: list[str], path_column: str | None, label_column: str | None) -> tuple[int, int]:
    label_at = None if label_column is None else _named(file, header, label_column)
    if path_column is None:
        path_at = _guessed(file, header, PATH_NAMES, "image files", taken=label_at)
    else:
        path_at = _named(file, header, path_column)
    if label_at is None:
        label_at = _guessed(file, header, LABEL_NAMES, "labels", taken=path_at)
    if path_at == label_at:
        raise UserError(f"{file}: column {_short(header[path_at])} cannot hold both paths and labels; {ASK}")
    return path_at, label_at


def _guessed(file: Path, header: list[str], names: Sequence[str], content: str, taken: int | None) -> int:
    available = {_plain(cell) for index, cell in enumerate(header) if index != taken}
    for name in names:
        if name in available:
            return _named(file, header, name)
    raise UserError(
        f"{file}: cannot tell which column holds the {content}; {ASK}, or add a header line such as path,label; "
        f"its columns are: {listed(header)}"
    )


def _named(file: Path, header: list[str], name: str) -> int:
    same = [index for index, cell in enumerate(header) if cell.strip() == name.strip()]
    found = same or [index for index, cell in enumerate(header) if _plain(cell) == _plain(name)]
    if not found:
        raise UserError(f"{file} has no column {name}; its columns are: {listed(header)}")
    if len(found) > 1:
        raise UserError(f"{file} has {len(found)} columns named {name}; rename one of them, or {ASK}")
    return found[0]


def listed(header: list[str]) -> str:
    names = [_short(cell) for cell in header if cell.strip()]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def _plain(name: str) -> str:
    return name.strip().casefold().replace(" ", "_")


def _is_image(cell: str) -> bool:
    return os.path.splitext(cell.strip())[1].lower() in SUFFIXES


def match(
    rows: Sequence[LabelRow], files: Sequence[str], *, table: Path, folder: Path
) -> tuple[dict[int, str | None], list[LabelRow]]:
    """The label (or None) of every file that a row names, by index in `files`, and the rows whose file does not exist.

    Paths in `files` are relative to `folder`.
    """
    return FileFinder(files, table, folder).match(rows)


class FileFinder:
    """Finds the file that a row means, trying the most literal reading of its path first."""

    def __init__(self, files: Sequence[str], table: Path, folder: Path) -> None:
        self.files, self.table, self.folder = files, table, folder
        self.as_written = {file: [index] for index, file in enumerate(files)}
        self.real = cache(os.path.realpath)
        self.places = (
            (os.path.abspath(folder), os.path.abspath(table.parent)),
            (self.real(folder), self.real(table.parent)),
        )

    @cached_property
    def by_path(self) -> dict[str, list[int]]:
        return self._indices(lambda path: path)

    @cached_property
    def by_stem(self) -> dict[str, list[int]]:
        return self._indices(_stem)

    @cached_property
    def by_name(self) -> dict[str, list[int]]:
        return self._indices(posixpath.basename)

    @cached_property
    def by_name_stem(self) -> dict[str, list[int]]:
        return self._indices(lambda path: _stem(posixpath.basename(path)))

    def _indices(self, key: Callable[[str], str]) -> dict[str, list[int]]:
        indices: dict[str, list[int]] = {}
        for index, file in enumerate(self.files):
            indices.setdefault(key(nfc(file)), []).append(index)
        return indices

    def match(self, rows: Sequence[LabelRow]) -> tuple[dict[int, str | None], list[LabelRow]]:
        """As the function `match`."""
        named: dict[int, LabelRow] = {}
        missing = []
        for row in rows:
            index = self.locate(row)
            if index is None:
                missing.append(row)
                continue
            before = named.get(index)
            if before is not None and row.label not in (None, before.label) and before.label is not None:
                raise UserError(
                    f"{self.table}, lines {before.line} and {row.line}: {self.files[index]} is labelled "
                    f"{_short(before.label)} and {_short(str(row.label))}; keep only the right label"
                )
            if before is None or before.label is None:
                named[index] = row
        return {index: row.label for index, row in named.items()}, missing

    def locate(self, row: LabelRow) -> int | None:
        """The index in `files` of the file that a row names, if there is one."""
        fits = next(filter(None, self._fits(row.path)), [])
        if len(fits) > 1:
            first, second = (self.files[index] for index in fits[:2])
            raise UserError(
                f"{self.table}, line {row.line}: {_short(row.path)} matches both {first} and {second}; "
                f"write the whole path relative to {self.folder}, with its suffix"
            )
        return fits[0] if fits else None

    def _fits(self, written: str) -> Iterator[list[int] | None]:
        """The files that match each reading of the path, the most literal reading first."""
        yield self.as_written.get(written)
        yield self.as_written.get(from_safe_path(written))
        yield self.by_path.get(nfc(written))
        path = posixpath.normpath(written.strip().replace("\\", "/"))
        readings = [nfc(path), *self._inside(path)]
        for reading in readings:
            yield self.by_path.get(reading)
        for reading in readings:
            yield self.by_stem.get(reading)
        if "/" not in path:
            yield self.by_name.get(nfc(path))
            yield self.by_name_stem.get(nfc(path))

    def _inside(self, path: str) -> Iterator[str]:
        """An absolute path, or one relative to the table, rewritten relative to the image folder."""
        for folder, beside in self.places:
            yield from _relative(os.path.normpath(os.path.join(beside, path)), folder)
        if os.path.isabs(path):
            parent, name = os.path.split(path)
            yield from _relative(os.path.join(self.real(parent), name), self.real(self.folder))


def _stem(path: str) -> str:
    return posixpath.splitext(path)[0]


def _relative(path: str, folder: str) -> Iterator[str]:
    path, folder = nfc(path).replace(os.sep, "/"), nfc(folder).replace(os.sep, "/").rstrip("/") + "/"
    if path.startswith(folder):
        yield path[len(folder) :]
