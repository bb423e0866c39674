"""`cotrain predict` on a bad day: bad files, impatient people, damaged parts, spreadsheets."""

import csv
import io
import os
import sys
from itertools import count
from pathlib import Path
from signal import SIGINT

import numpy as np
import pandas
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from cotrain.cli.main import main
from cotrain.data.label_table import read_table
from cotrain.inference import job_parts, streaming
from cotrain.inference.job_parts import Parts
from cotrain.inference.model import Predictions
from cotrain.inference.prediction_table import columns, csv_writer, open_table, rows_of
from cotrain.inference.streaming import RECORD, UNREADABLE, Predicted
from cotrain.storage import rows as rows_module
from cotrain.storage.cells import class_of, from_safe, from_safe_path, is_text
from tests.inference.many import BATCH, rows, words
from tests.odd import FORMULAS, NAMES, PATHS, as_a_spreadsheet_reads_it
from tests.processes import Running, here

pytestmark = pytest.mark.usefixtures("small_batches")


def test_one_bad_file_is_one_row(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("L", (9, 9)).save(photos / "good.png")
    Image.new("1", (70_000, 1)).save(photos / "long.png")
    (photos / "loop.png").symlink_to(photos / "loop.png")
    if hasattr(os, "mkfifo"):
        os.mkfifo(photos / "pipe.png")
    for workers in ("0", "1"):
        out = tmp_path / f"{workers}.csv"
        done = here(capsys, "predict", many / "run", *sorted(photos.iterdir()), "--out", out, "--workers", workers)
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
        errors = {Path(row["path"]).name: row["error"] for row in rows(out.read_bytes())}
        assert errors.pop("good.png") == ""
        assert all(error.startswith("unreadable: ") for error in errors.values()) and len(errors) >= 2


def interrupted(arguments: list[str], batches: int, times: int) -> None:
    """A job that gets so many signals after so many batches."""
    streaming.LARGEST_BATCH, job_parts.SECONDS = BATCH, 1e9
    predict_batch, predicted = streaming.predict_batch, count(1)

    def counted(*batch: object) -> object:
        result = predict_batch(*batch)
        if next(predicted) == batches:
            for _ in range(times):
                os.kill(os.getpid(), SIGINT)
        return result

    streaming.predict_batch = counted
    sys.argv = ["cotrain", *arguments]
    main()


@pytest.mark.system
@pytest.mark.parametrize("times", [1, 2, 3])
def test_ctrl_c_keeps_the_rows_made_so_far(times: int, many: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "preds.csv"
    done = Running(interrupted, words(many, out, "--workers", "0"), 4, times).wait()
    assert (done.returncode, done.stderr.count("\n")) == (130, 1), done.stderr
    assert "resume with: cotrain predict" in done.stderr
    records = np.fromfile(tmp_path / "preds.csv.partial" / "rows.index", rows_module.RECORD)
    assert np.count_nonzero(records["digest"]) == BATCH * (4 if times == 1 else 3)
    main(words(many, out, "--resume"))
    assert out.read_bytes() == whole["csv"]


@pytest.mark.system
@pytest.mark.parametrize("more", [[], ["--defer-below", "0.9"]])
def test_ctrl_c_prints_the_rows_made_so_far(more: list[str], many: Path, whole: dict[str, bytes]) -> None:
    arguments = ["predict", str(many / "run"), str(many / "photos"), "--workers", "0", *more]
    done = Running(interrupted, arguments, 2, 1).wait()
    assert done.returncode == 130
    assert "stopped after 100 of 600 images" in done.stderr
    printed, expected = rows(done.stdout.encode()), rows(whole["deferred.csv" if more else "csv"])
    assert len(printed) == 100 and all(row in expected for row in printed)


def predicted(labels: list[int]) -> Predicted:
    """Every unreadable file (-1) has an error of its own."""
    records = np.zeros(len(labels), RECORD)
    records["label"], records["probability"] = labels, np.arange(len(labels)) / 10
    errors = {row: f"cut off at byte {row}, caf\u00e9 \ud83d" for row, label in enumerate(labels) if label == -1}
    return Predicted(records, errors)


def parts_in(folder: Path, facts: dict[str, int] | None = None) -> Parts:
    return Parts(folder, facts or {"model": 1})


def test_parts_are_read_back_and_continued(tmp_path: Path) -> None:
    parts = parts_in(tmp_path)
    for labels in ([0, -1, 2], [1, -1]):
        parts.add(predicted(labels))
        parts.save()
    parts.add(predicted([3]))  # and killed
    again = parts_in(tmp_path)
    assert again.end == 5
    (read,) = again.read()
    assert read.records["label"].tolist() == [0, -1, 2, 1, -1]
    assert [*read.errors] == [1, 4] and read.errors[4] == predicted([1, -1]).errors[1]


@pytest.mark.parametrize(
    ("name", "byte", "end"),
    [("rows", 2 * RECORD.itemsize + 3, 2), ("rows.index", 3 * 16 + 8, 3), ("rows.index", 0, 0), ("errors", 9, 1)],
)
def test_predictions_from_the_first_damaged_one_on_are_not_used(name: str, byte: int, end: int, tmp_path: Path) -> None:
    parts = parts_in(tmp_path)
    parts.add(predicted([0, -1, 2, 1, -1]))
    parts.save()
    content = bytearray((tmp_path / name).read_bytes())
    content[byte] ^= 1
    (tmp_path / name).write_bytes(content)
    again = parts_in(tmp_path)
    assert again.end == end
    again.add(predicted([0, -1, 2, 1, -1])[end:])
    again.save()
    (read,) = parts_in(tmp_path).read()
    assert read.records.tolist() == predicted([0, -1, 2, 1, -1]).records.tolist()
    assert read.errors.keys() == {1, 4}


def test_predictions_of_another_job_are_not_used(tmp_path: Path) -> None:
    parts = parts_in(tmp_path)
    parts.add(predicted([0, 1]))
    parts.save()
    assert parts_in(tmp_path, {"model": 2}).end == 0


@pytest.mark.system
def test_what_killed_processes_left_does_not_keep_the_folder(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "preds.csv"
    Running(interrupted, words(many, out, "--workers", "0"), 2, 1).wait()
    (tmp_path / "preds.csv.partial" / ".rows-1.npz.partial").touch()
    main(words(many, out, "--resume"))
    assert [*tmp_path.iterdir()] == [out]


def test_no_cell_is_a_formula_and_labels_come_back(tmp_path: Path) -> None:
    names = ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM", "\ttab", "cat")
    paths = ["=1+1.png", "-x.png", "+y.png", "@z.png", "\tt.png", "a.png"]
    records = np.array([(number, 1, 0.5, 1.0) for number in range(len(names))], RECORD)
    table = tmp_path / "labels.csv"
    with open(table, "w", newline="") as file:
        csv_writer(file, columns(None))(rows_of(paths, Predicted(records, {}), names, None))
    cells = [cell for row in csv.reader(table.read_text().splitlines()[1:]) for cell in (row[0], row[1], row[4])]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
    read = read_table(table)
    assert [row.label for row in read] == [*names]
    assert [os.path.normpath(row.path) for row in read] == paths


@given(st.lists(st.tuples(PATHS, NAMES, st.text(st.characters(exclude_categories=["Cs"]))), min_size=1, max_size=4))
@example([("a\rb.jpg", "a\rb", "\r"), ("\n.png", "nan", "")])
def test_predictions_are_read_back_whatever_the_names(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    """By a spreadsheet, by pandas and as a label table. Every other row is that of an unreadable file."""
    paths, names = [path for path, _, _ in rows], [name for _, name, _ in rows]
    file, out = io.BytesIO(), tmp_path_factory.getbasetemp() / "predictions.csv"
    bad = {number: why for number, (_, _, why) in enumerate(rows) if number % 2}
    records = np.array([(UNREADABLE if n in bad else n, 1, 0.5, 1.0) for n in range(len(rows))], RECORD)
    with open_table(file, ".csv", columns(None)) as write:
        write(rows_of(paths, Predicted(records, bad), names, None))
    out.write_bytes(file.getvalue())
    header, *lines = as_a_spreadsheet_reads_it(file.getvalue().decode(errors="surrogateescape"))
    assert header == columns(None)
    assert not any(cell.startswith(FORMULAS) for line in lines for cell in line)
    assert [from_safe_path(line[0]) for line in lines] == paths
    assert [class_of(line[1]) for line in lines] == [None if n in bad else name for n, name in enumerate(names)]
    assert [from_safe(line[4]) for line in lines] == [
        f"unreadable: {bad[n]}" if n in bad else "" for n in range(len(rows))
    ]
    if not any("\0" in why for why in bad.values()):
        table = pandas.read_csv(out, dtype=object, keep_default_na=False, encoding_errors="surrogateescape")
        assert table.to_numpy().tolist() == lines
        if all(is_text(path) and path.strip() for path in paths):
            assert [row.label for row in read_table(out)] == [class_of(line[1]) for line in lines]


def test_the_names_of_predictions_are_made_once() -> None:
    predictions = Predictions(np.array([1, 0]), ("a", "b"), np.eye(2), np.array([3, 3]))
    assert predictions.names is predictions.names == ["b", "a"]


def test_a_folder_that_does_not_exist_is_said(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "no folder" / "preds.csv"
    done = here(capsys, *words(many, out))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not out.parent.exists()


def test_a_link_to_nothing_is_not_written_over(many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "preds.csv"
    out.symlink_to(tmp_path / "nothing")
    done = here(capsys, *words(many, out))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{out} already exists" in done.stderr
