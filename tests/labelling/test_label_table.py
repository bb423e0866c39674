"""labels.csv says what people said, keeps what was in it, and is safe to open in a spreadsheet."""

import csv
import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotrain.data.label_table import match, read_table
from cotrain.data.settings import DataSettings
from cotrain.labelling.events import Refused, class_name
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal
from cotrain.labelling.labels_csv import Edited, LabelTable
from cotrain.storage.cells import NO_LABEL
from cotrain.types import UserError

IMAGES = ["a.png", "b.png", "c.png", "sub/d.png"]
FORMULA = ("=", "+", "-", "@", "\t", "\r")
NASTY = [
    "=1+1",
    "+x",
    "-x",
    "@x",
    "'=x",
    "''=x",
    "'quoted'",
    'a "b", c',
    "a;b",
    "\N{CAT FACE}",
    "é",
    "= x",
    "-",
    "|",
    "#",
]


def table(folder: Path, images: list[str] = IMAGES, name: str = "labels.csv") -> LabelTable:
    return LabelTable(folder / name, folder, images, DataSettings())


def a_history(folder: Path) -> LabelHistory:
    history = LabelHistory(Journal.open(folder / "labels-history.jsonl"), table(folder))
    history.start({})
    return history


def say(history: LabelHistory, image: str, name: str, who: str = "me", seen: int | None = None) -> None:
    number = history.labels.number_of(name) or history.new_class(name, who=who, how="key")
    history.label({image: seen}, number, who=who, how="key")


def as_fit_reads_it(folder: Path, images: list[str] = IMAGES) -> dict[str, str]:
    file = folder / "labels.csv"
    named, _ = match(read_table(file), images, table=file, folder=folder)
    return {images[index]: label for index, label in named.items() if label is not None}


def names() -> st.SearchStrategy[str]:
    def kept(text: str) -> str | None:
        try:
            return class_name(text)
        except Refused:
            return None

    return (st.sampled_from(NASTY) | st.text(max_size=12)).map(kept).filter(lambda name: name is not None)


PATHS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(names=st.lists(names(), min_size=1, max_size=4), paths=st.lists(PATHS, min_size=4, max_size=4, unique=True))
def test_fit_reads_back_every_name_and_no_cell_is_a_formula(tmp_path: Path, names: list[str], paths: list[str]) -> None:
    images = [f"{path.strip()}{place}.png" for place, path in enumerate(paths)]
    labels = dict(zip(images, names, strict=False))
    (tmp_path / "labels.csv").unlink(missing_ok=True)
    made = table(tmp_path, images)
    made.write(labels, None)
    assert as_fit_reads_it(tmp_path, images) == labels
    assert not {*labels.values()} & NO_LABEL
    with open(tmp_path / "labels.csv", newline="", encoding="utf-8") as file:
        assert [cell for row in csv.reader(file) for cell in row if cell.startswith(FORMULA)] == []
    made.write({}, made.read())
    assert not (tmp_path / "labels.csv").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b"image;note;class\r\na.png;x, y;cat\r\nb.png;;\r\n",
            b"image;note;class\r\na.png;x, y;dog\r\nb.png;;\r\nc.png;;cat\r\n",
        ),
        (b"\xef\xbb\xbfpath,label\na.png,cat\n", b"\xef\xbb\xbfpath,label\na.png,dog\nc.png,cat\n"),
        (b"a.png,cat\nlost.png,owl\n", b"a.png,dog\nlost.png,owl\nc.png,cat\n"),
        ("path\tlabel\na.png\tcat\n".encode("utf-16"), "path\tlabel\na.png\tdog\nc.png\tcat\n".encode("utf-16")),
    ],
    ids=["columns", "byte order mark", "no header, a missing file", "utf-16"],
)
def test_what_a_users_table_holds_is_kept(tmp_path: Path, content: bytes, expected: bytes) -> None:
    (tmp_path / "labels.csv").write_bytes(content)
    one = table(tmp_path)
    one.write({"a.png": "dog", "c.png": "cat"}, one.read())
    assert (tmp_path / "labels.csv").read_bytes() == expected


def test_a_label_that_is_removed_leaves_no_empty_row_unless_the_row_says_more(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label,note\na.png,cat,\nb.png,cat,blurred\nc.png,cat,\n")
    one = table(tmp_path)
    one.write({"c.png": "cat"}, one.read())
    assert (tmp_path / "labels.csv").read_text() == "path,label,note\nb.png,,blurred\nc.png,cat,\n"


def test_an_edit_between_reading_and_writing_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat\n")
    one = table(tmp_path)
    before = one.read()
    (tmp_path / "labels.csv").write_text("path,label\na.png,owl\n")
    with pytest.raises(Edited):
        one.write({"a.png": "dog"}, before)
    assert (tmp_path / "labels.csv").read_text() == "path,label\na.png,owl\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.csv"]


def test_a_link_to_the_table_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("path,label\na.png,cat\n")
    (tmp_path / "labels.csv").symlink_to("real.csv")
    one = table(tmp_path)
    one.write({"a.png": "dog"}, one.read())
    assert (tmp_path / "labels.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "path,label\na.png,dog\n"


def test_labels_of_an_existing_table_are_taken_over_once(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat\nb.png,dog\n")
    before = (tmp_path / "labels.csv").read_bytes()
    history = a_history(tmp_path)
    assert history.labels.by_name == {"a.png": "cat", "b.png": "dog"}
    history.save()
    assert (tmp_path / "labels.csv").read_bytes() == before
    count = len(history.events)
    again = a_history(tmp_path)
    assert (again.labels, len(again.events)) == (history.labels, count)


def test_a_journal_that_is_ahead_of_the_table_wins(tmp_path: Path) -> None:
    """The process was killed before it wrote labels.csv."""
    history = a_history(tmp_path)
    say(history, "a.png", "cat")
    history.save()
    say(history, "b.png", "dog")
    say(history, "a.png", "dog")
    again = a_history(tmp_path)
    assert again.labels == history.labels
    again.save()
    assert as_fit_reads_it(tmp_path) == {"a.png": "dog", "b.png": "dog"}


@pytest.mark.parametrize("restarted", [False, True])
def test_edits_by_others_are_merged_and_a_copy_is_kept(tmp_path: Path, restarted: bool) -> None:
    history = a_history(tmp_path)
    for image, name in (("a.png", "cat"), ("b.png", "cat"), ("c.png", "cat")):
        say(history, image, name)
    history.save()
    edited = "path,label\na.png,cat\nb.png,owl\nsub/d.png,dog\n"  # b changed, c removed, d added
    (tmp_path / "labels.csv").write_text(edited)
    say(history, "a.png", "dog")
    if restarted:
        history = a_history(tmp_path)
    history.save()
    wanted = {"a.png": "dog", "b.png": "owl", "sub/d.png": "dog"}
    assert history.labels.by_name == as_fit_reads_it(tmp_path) == wanted
    if not restarted:
        (copy,) = tmp_path.glob("labels.edited-*.csv")
        assert copy.read_text() == edited
        assert copy.name in history.news


def test_an_edit_that_contradicts_a_newer_label_is_a_conflict(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    say(history, "a.png", "cat")
    history.save()
    (tmp_path / "labels.csv").write_text("path,label\na.png,owl\n")
    say(history, "a.png", "dog")
    history.save()
    assert [one.who for one in history.labels.opinions["a.png"]] == ["me", "labels.csv"]
    assert not (tmp_path / "labels.csv").exists() or as_fit_reads_it(tmp_path) == {}


def test_a_table_that_nobody_can_read_any_more_is_left_alone(tmp_path: Path) -> None:
    history = a_history(tmp_path)
    say(history, "a.png", "cat")
    history.save()
    broken = "path,label\na.png,cat,too,many\n"
    (tmp_path / "labels.csv").write_text(broken)
    say(history, "b.png", "cat")
    history.save()
    assert (tmp_path / "labels.csv").read_text() == broken
    assert "line 2 has 4 cells" in history.problem and "safe in labels-history.jsonl" in history.problem
    (tmp_path / "labels.csv").unlink()
    history.save()
    assert history.problem == ""
    assert as_fit_reads_it(tmp_path) == {"a.png": "cat", "b.png": "cat"}


def test_a_table_that_another_program_holds_open_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = a_history(tmp_path)

    def held(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", held)
        say(history, "a.png", "cat")
        history.save()
    assert "labels.csv cannot be written: Permission denied" in history.problem
    assert [path.name for path in tmp_path.iterdir()] == ["labels-history.jsonl"]
    history.save()
    assert (history.problem, as_fit_reads_it(tmp_path)) == ("", {"a.png": "cat"})


def test_a_table_with_a_mistake_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat,2,3\n")
    with pytest.raises(UserError, match=r"labels\.csv, line 2 has 4 cells"):
        a_history(tmp_path)
