"""Label tables of every kind people have, and the image files their rows mean."""

import csv
import io
import os
import re
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain import UserError
from cotrain.data.label_table import LabelRow, match, read_table
from cotrain.storage.cells import NO_LABEL

ROWS = [LabelRow(2, "a.jpg", "cat"), LabelRow(3, "b.jpg", "dog")]
TEXT = "path,label\na.jpg,cat\nb.jpg,dog\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "labels.csv"


def read(table: Path, content: str | bytes, **columns: str) -> list[LabelRow]:
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(table, **columns)


def refusal(table: Path, content: str | bytes, **columns: str) -> str:
    with pytest.raises(UserError) as error:
        read(table, content, **columns)
    message = str(error.value)
    assert str(table) in message and "\n" not in message
    return message


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_encodings_delimiters_and_line_ends(table: Path, encoding: str, delimiter: str, newline: str) -> None:
    assert read(table, TEXT.replace(",", delimiter).replace("\n", newline).encode(encoding)) == ROWS


def test_big_endian_utf16(table: Path) -> None:
    assert read(table, b"\xfe\xff" + TEXT.encode("utf-16-be")) == ROWS


CELL = st.text(
    st.one_of(st.sampled_from(" ,;|\"'éßé\n\\/."), st.characters(exclude_categories=["Cs", "Cc"])), min_size=1
).filter(str.strip)


@given(
    rows=st.lists(
        st.tuples(CELL, CELL.filter(lambda cell: cell.strip() not in {*NO_LABEL, "-1"}) | st.just("")), min_size=1
    ),
    delimiter=st.sampled_from(",;\t|"),
    quote_all=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    delimiter: str,
    quote_all: bool,
    encoding: str,
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL)
    writer.writerow(["path", "label"])
    expected = []
    for path, label in rows:
        line = text.getvalue().count("\n") + 1
        writer.writerow([path, label])
        expected.append(LabelRow(line, path, unicodedata.normalize("NFC", label.strip()) or None))
    file = tmp_path_factory.getbasetemp() / "written.csv"
    assert read(file, text.getvalue().encode(encoding)) == expected


@pytest.mark.parametrize(
    "header",
    [
        "filename,label,id",
        "FileName , LABEL",
        "File Name,Class Name",
        "image_id,dx",
        "id,breed",
        '"path","species"',
        "path,label,class",
    ],
)
def test_columns_are_known_by_their_names(table: Path, header: str) -> None:
    assert read(table, f"{header}\na.jpg,cat,3\n".replace(",3", ",3" * (header.count(",") - 1))) == ROWS[:1]


def test_better_names_win_and_other_columns_are_ignored(table: Path) -> None:
    assert read(table, ",id,width,label,filename\n0,7,32,cat,a.jpg\n1,8,32,dog,b.jpg\n") == ROWS


def test_columns_can_be_named(table: Path) -> None:
    text = "path,label,Where is it; exactly,What\nx,y,a.jpg,cat\nx,y,b.jpg,dog\n"
    assert read(table, text, path_column="Where is it; exactly", label_column="what ") == ROWS
    assert read(table, "id,name\na.jpg,cat\nb.jpg,dog\n", label_column="name") == ROWS
    assert read(table, "label,Label\na.jpg,cat\nb.jpg,dog\n", path_column="label", label_column="Label") == ROWS


def test_a_table_without_header(table: Path) -> None:
    expected = [LabelRow(1, "a, b.JPG", "y"), LabelRow(2, "c", "n")]
    assert read(table, "a, b.JPG;y;label\nc;n;\n") == expected


def test_delimiters_in_quoted_headers(table: Path) -> None:
    assert read(table, 'path;"size, in, pixels, of, it";label\na.jpg;1;cat\nb.jpg;2;dog\n') == ROWS


def test_lines_are_counted_as_an_editor_does(table: Path) -> None:
    rows = read(table, '\n  \npath,label\r\n\r\na.jpg,"big\ncat"\r\n,\r\nb.jpg,dog\n\n')
    assert rows == [LabelRow(5, "a.jpg", "big\ncat"), LabelRow(8, "b.jpg", "dog")]


@pytest.mark.parametrize(
    ("cell", "label"),
    [("", None), ("  ", None), ("nan", None), ("NaN", None)]
    + [(name, name) for name in ("NA", "N/A", "None", "null", "NAN", "0")]
    + [(" cat\t", "cat"), ('"a ""big"" cat"', 'a "big" cat')],
)
def test_labels_are_stripped_and_only_empty_ones_are_missing(table: Path, cell: str, label: str | None) -> None:
    assert read(table, f"path,label\na.jpg,{cell}\n") == [LabelRow(2, "a.jpg", label)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf\n \n", "is empty"),
        (b"path,label\n\n", "no rows below its header"),
        (b"path,label\na.jpg,cat\n,dog\n", "line 3 has no image path"),
        (b"path,label\na.jpg,cat\nb.jpg\n", "line 3 has no cell for the label"),
        (b"label,path\ncat,a.jpg\ndog\n", "line 3 has no cell for the path"),
        (b"a.jpg\nb.jpg\n", "line 1 has no cell for the label"),
        (b"path,label\na.jpg,cat\nb,c.jpg,dog\n", "line 3 has 3 cells"),
        (b'path,label\na.jpg,cat\n"b.jpg,dog\nc.jpg,dog\n', "line 3 is not valid CSV"),
        (b'path,label\na.jpg,cat\n"b".jpg,dog\n', "line 3 is not valid CSV"),
        (b"path,label\n" + b"a" * 200_000 + b",cat\n", "line 2 is not valid CSV"),
        ("path,label\na.jpg,cat\nb.jpg,mäusebussard\n".encode("latin-1"), "line 3 has a byte that is not UTF-8"),
        ("path,label\r\na.jpg,cat\r\n".encode("utf-16") + b"b", "line 3 has a byte that is not UTF-16"),
        (TEXT.encode("utf-16-le"), "is not a CSV text file"),
        (b"PK\x03\x04\x14\x00\x06\x00\xff\xfe", "is not a CSV text file"),
        (b"\xff\xfePK\x00\x00\x06\x00\xff", "is not a CSV text file"),
        (b"path,label,label\na.jpg,cat,dog\n", "2 columns named label"),
    ],
)
def test_bad_tables_are_refused_in_one_line(table: Path, content: bytes, said: str) -> None:
    assert said in refusal(table, content)


def test_encoding_errors_say_what_to_do(table: Path) -> None:
    assert "save the table as CSV in UTF-8" in refusal(table, "path,label\né.jpg,cat\n".encode("cp1252"))


@pytest.mark.parametrize(
    ("header", "content"),
    [
        ("where,what\nx", "image files"),
        ("where,label", "image files"),
        ("path,what", "labels"),
        ("path", "labels"),
    ],
)
def test_unknown_columns_are_listed(table: Path, header: str, content: str) -> None:
    message = refusal(table, f"{header}\nx,y\n")
    assert f"which column holds the {content}" in message and header.split("\n")[0].replace(",", ", ") in message
    assert "--data.path_column NAME --data.label_column NAME" in message


def test_wrong_names_of_columns_list_the_right_ones(table: Path) -> None:
    for column in ("path_column", "label_column"):
        assert refusal(table, TEXT, **{column: "kind"}).endswith("has no column kind; its columns are: path, label")
    assert "cannot hold both paths and labels" in refusal(table, TEXT, path_column="label", label_column="Label")


def test_long_lists_of_columns_are_cut(table: Path) -> None:
    message = refusal(table, ",".join(f"column{number}" for number in range(500)) + ',"' + "x\n" * 1000 + '"\n')
    assert message.endswith("column19 and 481 more")
    assert len(refusal(table, "x" * 5000)) < 500


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(UserError, match=re.escape(f"{file} cannot be read")):
            read_table(file)


PIECE = st.sampled_from(["path", "label", "a.jpg", ",", ";", "\t", '"', "\n", "\r", " ", "é", "nan"])


@given(st.binary() | st.lists(PIECE).map("".join).map(str.encode))
def test_any_bytes_are_rows_or_one_clear_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.csv"
    try:
        rows = read(file, content)
        assert rows and all(row.path.strip() and row.label != "" for row in rows)
    except UserError as error:
        assert str(file) in str(error) and "\n" not in str(error)


FILES = ["a.jpg", "train/b.jpg", "train/deep/c d.PNG", "test/e.1.jpg", "é.jpg"]


def place(tmp_path: Path, path: str, table: str = "images/labels.csv") -> str | None:
    """The file that a row of a table means, if any."""
    row = LabelRow(2, path, "cat")
    labels, missing = match([row], FILES, table=tmp_path / table, folder=tmp_path / "images")
    assert set(labels.values()) | {row.label for row in missing} == {"cat"}
    assert len(labels) + len(missing) == 1
    return FILES[next(iter(labels))] if labels else None


@pytest.mark.parametrize("file", FILES)
def test_rows_as_people_write_them(tmp_path: Path, file: str) -> None:
    written = [
        *(file, f"./{file}", f" {file} ", file.replace("/", "\\"), f".\\{file}", f"x/../{file}"),
        *(os.path.splitext(file)[0], os.path.basename(file), os.path.splitext(os.path.basename(file))[0]),
        *(unicodedata.normalize("NFC", file), unicodedata.normalize("NFD", file)),
    ]
    for path in [*written, *(str(tmp_path / "images" / path.strip()) for path in written[:4])]:
        assert place(tmp_path, path) == file, path
    for path in (file, os.path.splitext(file)[0]):
        assert place(tmp_path, f"images/{path}", table="labels.csv") == file
        assert place(tmp_path, f"../images/{path}", table="tables/labels.csv") == file
        assert place(tmp_path, f"../{path}", table="images/train/labels.csv") == file
    assert place(tmp_path, "b.jpg", table="images/train/labels.csv") == "train/b.jpg"


@pytest.mark.parametrize(
    "path", ["f.jpg", "a.png", "A.jpg", "x/a.jpg", "deep/c d.PNG", "../a.jpg", "/a.jpg", "C:\\images\\a.jpg", ".", ".."]
)
def test_files_that_are_not_there_are_missing(tmp_path: Path, path: str) -> None:
    assert place(tmp_path, path) is None


def test_paths_relative_to_the_working_folder_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("images/a.jpg", f"{tmp_path}/images/a.jpg"):
        assert match([LabelRow(2, path, "x")], FILES, table=Path("t.csv"), folder=Path("images")) == ({0: "x"}, [])


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "link").symlink_to("images")
    for opened, written in (("images", "link"), ("link", "images")):
        row = LabelRow(2, f"{tmp_path}/{written}/a.jpg", "x")
        assert match([row], FILES, table=tmp_path / "t.csv", folder=tmp_path / opened) == ({0: "x"}, [])
        row = LabelRow(2, "a", "x")
        beside = tmp_path / written / "t.csv"
        assert match([row], ["a.jpg", "b/a.jpg"], table=beside, folder=tmp_path / opened) == ({0: "x"}, [])


@pytest.mark.parametrize(
    ("path", "files", "table", "found"),
    [
        ("a", ["a.jpg", "a"], "t.csv", "a"),
        ("a.jpg", ["b/a.jpg", "c/a.jpg", "a.jpg"], "t.csv", "a.jpg"),
        ("a.jpg", ["b/a.jpg", "c/a.jpg"], "b/t.csv", "b/a.jpg"),
        ("a", ["b/a.jpg", "c/a.jpg"], "b/t.csv", "b/a.jpg"),
        ("a.jpg", ["a.jpg.png", "b/a.jpg", "a.jpg"], "t.csv", "a.jpg"),
        ("a\\b.jpg", ["a/b.jpg", "a\\b.jpg"], "t.csv", "a\\b.jpg"),
        (" a.jpg", ["a.jpg", " a.jpg"], "t.csv", " a.jpg"),
        ("e\u0301.jpg", ["\u00e9.jpg", "e\u0301.jpg"], "t.csv", "e\u0301.jpg"),
    ],
)
def test_the_exact_file_wins(tmp_path: Path, path: str, files: list[str], table: str, found: str) -> None:
    labels, missing = match([LabelRow(2, path, "x")], files, table=tmp_path / table, folder=tmp_path)
    assert (labels, missing) == ({files.index(found): "x"}, [])


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("a", ["a.jpg", "a.png"]),
        ("a.jpg", ["b/a.jpg", "c/a.jpg"]),
        ("a", ["b/a.jpg", "c/a.png"]),
        ("b/a", ["b/a.jpg", "b/a.png"]),
        ("./\u00e9.jpg", ["\u00e9.jpg", "e\u0301.jpg"]),
    ],
)
def test_rows_that_fit_two_files_are_refused(tmp_path: Path, path: str, files: list[str]) -> None:
    with pytest.raises(UserError) as error:
        match([LabelRow(7, path, "x")], files, table=tmp_path / "t.csv", folder=tmp_path)
    assert f"t.csv, line 7: {path} matches both {files[0]} and {files[1]}; write the whole path" in str(error.value)


def test_files_named_twice(table: Path) -> None:
    folder = table.parent
    rows = read(table, "path,label\na.jpg,\n./a.jpg,cat\na,cat\na.jpg,nan\nx.jpg,cat\ny.jpg,\n")
    labels, missing = match(rows, ["b.jpg", "a.jpg"], table=table, folder=folder)
    assert labels == {1: "cat"} and [row.line for row in missing] == [6, 7]
    rows = read(table, "path,label\na.jpg,cat\nb.jpg,cat\na,dog\n")
    with pytest.raises(UserError, match=re.escape("labels.csv, lines 2 and 4: a.jpg is labelled cat and dog")):
        match(rows, ["b.jpg", "a.jpg"], table=table, folder=folder)


def test_large_tables_are_quick(tmp_path: Path) -> None:
    files = [f"train/{number % 100}/image_{number}.jpg" for number in range(20_000)]
    written = [f"image_{number}" for number in range(10_000)] + [f"/gone/{file}" for file in files[10_000:]]
    rows = [LabelRow(line, path, "x") for line, path in enumerate(written, 2)]
    start = time.process_time()
    labels, missing = match(rows, files, table=tmp_path / "t.csv", folder=tmp_path)
    assert time.process_time() - start < 4
    assert list(labels) == list(range(10_000)) and missing == rows[10_000:]


def test_words_for_no_label(tmp_path: Path) -> None:
    rows = read(tmp_path / "t.csv", b"path,label\na.png,unlabelled\nb.png,0\nc.png,-1\nd.png,12\n")
    assert [row.label for row in rows] == [None, "0", None, "12"]
    rows = read(tmp_path / "t.csv", b"path,label\na.png,-1\nb.png,cat\n")
    assert [row.label for row in rows] == ["-1", "cat"], "-1 is no class only among numbers"
