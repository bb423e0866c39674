"""Predictions of many files: against a plain loop over them, in every format, and with bounded memory."""

import sys
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

import cotrain
from cotrain.cli.main import main
from cotrain.data.decode import Unreadable, read_image
from cotrain.data.workers import CRASHED, Workers, find_images
from cotrain.inference import job_parts, prediction_table
from cotrain.inference.job import Job
from tests.inference.many import rows, words
from tests.processes import here

pytestmark = pytest.mark.usefixtures("small_batches")


def by_brute_force(many: Path) -> list[dict[str, str]]:
    """File by file, in this process, all in memory."""
    model = cotrain.load(many / "run")
    expected = []
    for path in sorted((many / "photos").rglob("*.png")):
        row = {"path": str(path), "class": "", "probability": "", "heads_agree": "", "belongs": "", "error": ""}
        try:
            predictions = model.predict(read_image(path, 8, 8, 1)[None])
        except Unreadable as error:
            row["error"] = f"unreadable: {error}"
        else:
            probability = round(float(predictions.probabilities.max()), 6)
            agree = int(predictions.heads_agree[0])
            row |= {"class": predictions.names[0], "probability": str(probability), "heads_agree": str(agree)}
            row["belongs"] = str(round(float(predictions.belongs[0]), 6))
        expected.append(row)
    return expected


def without_numbers(table: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row | {"probability": "", "belongs": ""} for row in table]


def numbers(table: list[dict[str, str]], column: str) -> list[float]:
    return [float(row[column] or -1) for row in table]


def test_the_table_is_that_of_a_loop_over_the_files(many: Path, whole: dict[str, bytes]) -> None:
    shown, expected = rows(whole["csv"]), by_brute_force(many)
    assert without_numbers(shown) == without_numbers(expected)
    assert numbers(shown, "probability") == pytest.approx(numbers(expected, "probability"), abs=2e-6)
    assert numbers(shown, "belongs") == pytest.approx(numbers(expected, "belongs"), abs=2e-6)
    assert sum(bool(row["error"]) for row in shown) == 7
    assert list(many.glob("*.partial")) == []


def test_workers_and_this_process_decode_the_same(many: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    for workers in ("0", "1", "3"):
        main(words(many, tmp_path / f"{workers}.csv", "--workers", workers))
        assert (tmp_path / f"{workers}.csv").read_bytes() == whole["csv"]


def test_printed_rows_and_python_rows_are_the_same(
    many: Path, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["predict", str(many / "run"), str(many / "photos")])
    assert capsys.readouterr().out.encode() == whole["csv"]
    main(["predict", str(many / "run"), str(many / "photos"), "--defer-below", "0.9"])
    assert capsys.readouterr().out.encode() == whole["deferred.csv"]
    each = list(cotrain.load(many / "run").predict_files(find_images([many / "photos"])))
    assert [row["path"] for row in each] == [row["path"] for row in rows(whole["csv"])]
    assert [round(float(row["probability"] or -1), 6) for row in each] == numbers(rows(whole["csv"]), "probability")


def test_deferred_rows_are_the_same_rows_sorted(many: Path, whole: dict[str, bytes]) -> None:
    shown, plain = rows(whole["deferred.csv"]), rows(whole["csv"])
    every_digit = cotrain.load(many / "run").predict_files(find_images([many / "photos"]))
    confidence = {str(row["path"]): float(row["probability"] or -1) for row in every_digit}
    expected = [
        row | {"defer": "yes" if confidence[row["path"]] < 0.9 else "no"}
        for row in sorted(plain, key=lambda row: confidence[row["path"]])
    ]
    assert shown == expected
    assert {row["defer"] for row in shown} == {"yes", "no"} and len(set(confidence.values())) > 100


def test_parquet_holds_what_csv_holds(many: Path, whole: dict[str, bytes]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    read = parquet.read_table(many / "whole.parquet").to_pylist()
    shown = [
        {name: "" if value is None else str(value) for name, value in row.items()}
        | {"probability": "" if row["probability"] is None else str(round(row["probability"], 6))}
        for row in read
    ]
    assert shown == rows(whole["csv"])
    assert parquet.read_schema(many / "whole.parquet").field("probability").type == "double"


def test_without_pyarrow_one_line_says_what_to_install(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = here(capsys, *words(many, tmp_path / "a.parquet"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'cotrain[parquet]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_crashes_the_decoder_has_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotrain.data import decode

    worker = tmp_path / "worker.py"
    text = Path(decode.__file__).read_text()
    worker.write_text(
        text.replace("    for row, path in", "    if any('evil' in p for p in paths): os.abort()\n    for row, path in")
    )
    for value, name in enumerate(("a", "evil", "b")):
        Image.new("L", (4, 4), value + 1).save(tmp_path / f"{name}.png")
    monkeypatch.setattr(decode, "__file__", str(worker))
    with Workers(2) as workers:
        batches = [[str(tmp_path / f"{name}.png") for name in some] for some in (("a", "evil", "b"), ("b",))]
        first, second = workers.decode(batches, (4, 4, 1))
    assert first.errors == [None, CRASHED, None] and second.errors == [None]
    assert first.images[:, 0, 0, 0].tolist() == [1, 0, 3] and second.images.max() == 3


def test_workers_stay_only_a_few_batches_ahead(many: Path) -> None:
    paths, taken = find_images([many / "photos"]), []
    batches = (taken.append(start) or paths[start : start + 10] for start in range(0, len(paths), 10))
    with Workers(2) as workers:
        decoded = workers.decode(batches, (8, 8, 1))
        next(decoded)
        assert len(taken) <= 6
        assert sum(1 for _ in decoded) == 59


@pytest.mark.system
@pytest.mark.parametrize(("below", "most"), [(None, 40), (0.9, 100)])
def test_memory_does_not_grow_with_the_number_of_images(
    below: float | None, most: int, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apart from their paths, and about 50 bytes each while they are sorted. A row takes several hundred bytes."""
    monkeypatch.setattr(job_parts, "ROWS", 500)
    monkeypatch.setattr(prediction_table, "ROWS_AT_ONCE", 250)
    model, found = cotrain.load(many / "run"), find_images([many / "photos"])[:50]
    peaks = {}
    for images in (100, 500, 2_500):
        job = Job(model, (found * images)[:images], below, 0, Console(quiet=True))
        tracemalloc.start()
        job.to_file(tmp_path / f"{images}.csv", {}, resume=False)
        peaks[images] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[2_500] - peaks[500] < 2_000 * most
