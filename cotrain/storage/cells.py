"""Cells of CSV files that a spreadsheet must not take for formulas, and that are read back as they were."""

import csv
import json
import os
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

FORMULA = r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"  # the last four are = + - @ of full width
NO_LABEL = {
    "",
    "nan",
    "NaN",
    "unlabelled",
    "unlabeled",
}  # pandas writes nan for an empty cell
QUOTED = "'\""  # begins a class name that is written as a JSON string


def safe(text: str) -> str:
    """The text with an apostrophe before it if a spreadsheet would take it for a formula: '=SUM for =SUM."""
    return f"'{text}" if re.match(rf"'*{FORMULA}", text) else text


def from_safe(cell: str) -> str:
    """The text that `safe` made this cell of."""
    return cell[1:] if re.match(rf"'+{FORMULA}", cell) else cell


def safe_path(path: str) -> str:
    """The same for a relative path, which means the same with ./ before it."""
    return f"./{path}" if re.match(FORMULA, path) else path


def from_safe_path(cell: str) -> str:
    """The path that `safe_path` made this cell of."""
    return cell[2:] if re.match(rf"\./{FORMULA}", cell) else cell


def class_cell(name: str) -> str:
    """The cell of a class name. A name that a label table would not give back as it is becomes '"a JSON string"."""
    cell = safe(name)
    plain = class_of(cell) == name and not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name)
    return cell if plain else f"'{json.dumps(name)}"


def class_of(cell: str) -> str | None:
    """The class name that a cell holds; None: unlabelled."""
    text = nfc(cell.strip())
    if text in NO_LABEL:
        return None
    if text.startswith(QUOTED):
        try:
            if isinstance(name := json.loads(text[1:]), str):
                return name
        except ValueError:
            pass  # an apostrophe and a quotation mark that somebody typed
    return from_safe(text)


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def is_text(path: str) -> bool:
    """Whether a label table can hold the path: some file names are no valid text."""
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def csv_line(cells: Iterable[object], *, delimiter: str = ",", newline: str = "\n") -> str:
    """One line of CSV. The csv module quotes a bare carriage return only if that is part of its own line end."""
    writer: Any = csv.writer(_Returning(), delimiter=delimiter, lineterminator="\r\n")
    line: str = writer.writerow(cells)
    return line.removesuffix("\r\n") + newline


class _Returning:
    """A file that returns every line instead of keeping it."""

    def write(self, line: str) -> str:
        return line
