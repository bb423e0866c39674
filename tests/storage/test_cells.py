"""Cells that a spreadsheet does not run, and that are read back as they were."""

import csv
import io

import pandas
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotrain.storage.cells import class_cell, class_of, csv_line, from_safe, from_safe_path, safe, safe_path
from tests.odd import FORMULAS, NAMES, PATHS, as_a_spreadsheet_reads_it


@given(st.text(alphabet=st.sampled_from("=+-@'\t\rab ,\"")))
def test_any_text_comes_back(text: str) -> None:
    assert from_safe(safe(text)) == text
    assert not safe(text).startswith(FORMULAS)
    assert not safe_path(text).startswith(FORMULAS)


@pytest.mark.parametrize("text", ["cat", "", "'quoted'", "a=b", "12"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert safe(text) == from_safe(text) == safe_path(text) == text


@given(PATHS)
def test_any_path_comes_back(path: str) -> None:
    assert from_safe_path(safe_path(path)) == path
    assert not safe_path(path).startswith(FORMULAS)


@given(NAMES)
@example("nan")
@example("-1")
@example("")
@example(" a")
@example("a\rb")
@example("e\u0301")
@example("a\0b")
@example("\udcff")
@example('\'"x"')
@example("\N{FULLWIDTH EQUALS SIGN}1")
def test_any_class_name_comes_back(name: str) -> None:
    """Its cell is text that any encoding can write, on one line, and no formula."""
    cell = class_cell(name)
    assert class_of(cell) == class_of(f" {cell}\t") == name
    assert not cell.startswith(FORMULAS)
    assert cell.encode() and not {*cell} & {*"\r\n\0"}


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(st.tuples(PATHS, TEXTS), min_size=1), st.sampled_from(",;\t|"), st.sampled_from(["\n", "\r\n"]))
@example([("a\rb.jpg", "\r")], ",", "\n")
@example([("a\r", "b\n"), ('"', "'")], ";", "\r\n")
def test_any_cells_are_read_back_by_everybody(rows: list[tuple[str, str]], delimiter: str, newline: str) -> None:
    """By Python, by pandas, and by a spreadsheet, for which a carriage return ends a line unless it is quoted."""
    lines = [["path", "text"], *([path, text] for path, text in rows)]
    written = "".join(csv_line(line, delimiter=delimiter, newline=newline) for line in lines)
    assert [*csv.reader(io.StringIO(written, newline=""), delimiter=delimiter, strict=True)] == lines
    assert as_a_spreadsheet_reads_it(written, delimiter) == lines
    content = io.BytesIO(written.encode(errors="surrogateescape"))
    table = pandas.read_csv(
        content, sep=delimiter, dtype=object, keep_default_na=False, encoding_errors="surrogateescape"
    )
    assert table.to_numpy().tolist() == lines[1:]
