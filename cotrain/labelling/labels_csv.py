"""labels.csv: the labels as a table that people and `cotrain fit` read. Other cells of a user's table are kept."""

import codecs
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cotrain.data.label_table import MINUS_ONE, FileFinder, Sheet, read_sheet
from cotrain.data.settings import DataSettings
from cotrain.storage.cells import class_cell, csv_line, safe_path
from cotrain.storage.reading import read_bytes
from cotrain.storage.regular import real_path
from cotrain.storage.writing import replacing
from cotrain.types import UserError

HEADER = ["path", "label"]
ABSENT = ""  # the digest of a table that does not exist


class Edited(Exception):
    """Somebody else wrote to the table since it was read."""


@dataclass(frozen=True)
class Content:
    """What the file held when it was read."""

    digest: str
    sheet: Sheet
    images: Sequence[str | None]  # of each row; None: no such file
    labels: Mapping[str, str]  # image -> class name
    encoding: str
    newline: str


class LabelTable:
    """The label table of a folder, whose images are given by paths relative to it."""

    def __init__(self, path: Path, folder: Path, images: Sequence[str], settings: DataSettings) -> None:
        try:
            self.path = Path(real_path(path, path.parent))  # the file itself is replaced, not a link to it
        except OSError as error:
            raise UserError(
                f"{path} cannot be used: {error.strerror}; name the table itself by --labels FILE"
            ) from error
        self.images, self.settings = images, settings
        self._finder = FileFinder(images, self.path, folder)  # made once, because it takes a pass over all images

    def digest(self) -> str:
        try:
            return _digest(self._bytes())
        except FileNotFoundError:
            return ABSENT

    def _bytes(self) -> bytes:
        return read_bytes(self.path, inside=self.path.parent)

    def stamp(self) -> tuple[int, int, int] | None:
        """Numbers that change when somebody writes to the file; None if there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self) -> Content | None:
        """None if there is no table. A table that cannot be understood is a `UserError`."""
        try:
            data = self._bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from error
        sheet = read_sheet(self.path, path_column=self.settings.path_column, label_column=self.settings.label_column)
        named, _ = self._finder.match(sheet.rows)
        places = map(self._finder.locate, sheet.rows)
        return Content(
            digest=_digest(data),
            sheet=sheet,
            images=[None if place is None else self.images[place] for place in places],
            labels={self.images[index]: label for index, label in named.items() if label is not None},
            encoding=_encoding(data),
            newline="\r\n" if b"\r\n" in data else "\n",
        )

    def write(self, labels: Mapping[str, str], before: Content | None) -> str:
        """Replace the file that was read as `before`, and return the digest of the new one. No rows: no file."""
        records = _changed(before, labels) if before else []
        listed = set(before.images) if before else set()
        width, path_at, label_at = _shape(before)
        for image, label in labels.items():
            if image not in listed:
                cells = [""] * width
                cells[path_at], cells[label_at] = safe_path(image), class_cell(label)
                records.append(cells)
        header = HEADER if before is None else before.sheet.header
        content = _text(header, records, before) if records else b""
        self._replace(content, before.digest if before else ABSENT)
        return _digest(content) if records else ABSENT

    def keep_copy(self) -> Path:
        """Copy the file as it is now to a new name beside it."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        copy = self.path.with_name(f"{self.path.stem}.edited-{stamp}{self.path.suffix}")
        with open(copy, "xb") as file:
            file.write(self._bytes())
            file.flush()
            os.fsync(file.fileno())
        return copy

    def _replace(self, content: bytes, expected: str) -> None:
        if not content:
            self._check_unchanged(expected)
            self.path.unlink(missing_ok=True)
            return
        with replacing(self.path, mode=self._mode()) as file:
            file.write(content)
            file.flush()
            self._check_unchanged(expected)

    def _check_unchanged(self, expected: str) -> None:
        if self.digest() != expected:
            raise Edited

    def _mode(self) -> int:
        try:
            return self.path.stat().st_mode & 0o777
        except FileNotFoundError:
            return 0o644


def _shape(before: Content | None) -> tuple[int, int, int]:
    """Number of columns, and the places of path and label."""
    if before is None:
        return len(HEADER), 0, 1
    sheet = before.sheet
    return len(sheet.header or sheet.records[0]), sheet.path_at, sheet.label_at


def _changed(before: Content, labels: Mapping[str, str]) -> list[list[str]]:
    """The rows of the table with these labels. A row that loses its label and holds nothing else is left out."""
    sheet, records = before.sheet, []
    for cells, row, image in zip(sheet.records, sheet.rows, before.images, strict=True):
        label = row.label if image is None else labels.get(image)
        if label == row.label and cells[sheet.label_at].strip() == MINUS_ONE:
            cells = [*cells]  # -1 is unlabelled or a class, depending on the other labels, which change
            cells[sheet.label_at] = "" if label is None else class_cell(label)
        if label != row.label:
            cells = [*cells]
            cells[sheet.label_at] = "" if label is None else class_cell(label)
            others = [cell for place, cell in enumerate(cells) if place != sheet.path_at and cell.strip()]
            if not others:
                continue
        records.append(cells)
    return records


def _text(header: list[str] | None, records: list[list[str]], before: Content | None) -> bytes:
    delimiter, newline = (before.sheet.delimiter, before.newline) if before else (",", "\n")
    lines = [*([header] if header is not None else []), *records]
    text = "".join(csv_line(cells, delimiter=delimiter, newline=newline) for cells in lines)
    return text.encode(before.encoding if before else "utf-8")


def _encoding(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
