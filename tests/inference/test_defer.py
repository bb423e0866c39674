"""Images that are passed on to a person."""

import csv
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cotrain
from cotrain import Dataset
from cotrain.cli.main import main
from cotrain.cli.predict import rounded_up
from cotrain.evaluation.calibration import with_temperature
from cotrain.inference.prediction_table import Row, csv_writer, least_confident_first, rows_of
from cotrain.inference.streaming import RECORD, UNREADABLE, Predicted
from cotrain.runs.scores import Outputs, write_outputs
from cotrain.storage.reading import read_json
from cotrain.storage.writing import write_json


@pytest.fixture(scope="module")
def folder(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with validation images and a temperature of 1.5, and photos to predict: eight of them, and a torn one."""
    folder = tmp_path_factory.mktemp("defer")
    batches = {
        "optim.steps": 20,
        "optim.labelled": 8,
        "optim.unlabelled": 16,
        "run.baseline": False,
        "run.report": False,
    }
    settings = {"data.labels": 40, "data.valid_share": 0.3, **batches}
    cotrain.fit(toy, out=folder / "run", config=cotrain.recipe_named("digits"), settings=settings)
    result = read_json(folder / "run" / "result.json")
    write_json(folder / "run" / "result.json", result | {"temperature": 1.5})
    (folder / "photos").mkdir()
    for row in range(8):
        Image.fromarray(toy.images[row, :, :, 0].numpy()).save(folder / "photos" / f"{row}.png")
    (folder / "photos" / "torn.png").write_bytes(b"torn")
    return folder


def predicted(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> list[dict[str, str]]:
    main(["predict", str(folder / "run"), str(folder / "photos"), *words])
    return list(csv.DictReader(capsys.readouterr().out.splitlines()))


def test_the_probability_is_the_calibrated_one(folder: Path, toy: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    model = cotrain.load(folder / "run")
    assert model.temperature == 1.5
    rows = {Path(row["path"]).stem: row for row in predicted(capsys, folder)}
    probabilities = with_temperature(model.logits(toy.images, np.arange(8)), 1.5, "probabilities")
    for number in range(8):
        shown = float(rows[str(number)]["probability"])
        assert shown == pytest.approx(probabilities[number].max().item(), abs=1e-5)
    assert "defer" not in rows["0"]


def table_of(**probabilities: float | None) -> Predicted:
    """None: the file is unreadable."""
    records = [(UNREADABLE, 0, 0.0, np.nan) if p is None else (0, 3, p, np.nan) for p in probabilities.values()]
    errors = {row: name for row, (name, p) in enumerate(probabilities.items()) if p is None}
    return Predicted(np.array(records, RECORD), errors)


def as_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    csv_writer(text, list(rows[0]))(rows)
    return text.getvalue().splitlines()[1]


def test_those_to_look_at_come_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [table_of(a=0.9, b=0.3, torn=None), table_of(c=0.6), table_of(d=0.99, lost=None, e=0.3)]
    paths = ["a", "b", "torn", "c", "d", "lost", "e"]
    marked = [row for rows in least_confident_first(paths, lambda: iter(parts), ["cat"], 0.9) for row in rows]
    assert [(row["path"], row["defer"], row["error"]) for row in marked] == [
        ("torn", "yes", "unreadable: torn"),
        ("lost", "yes", "unreadable: lost"),
        ("b", "yes", ""),
        ("e", "yes", ""),
        ("c", "yes", ""),
        ("a", "no", ""),
        ("d", "no", ""),
    ]
    plain = {row["path"]: row for row in predicted(capsys, folder)}
    shown = predicted(capsys, folder, "--defer-below", "0.5")
    assert Path(shown[0]["path"]).name == "torn.png" and shown[0]["defer"] == "yes"
    assert all(row | {"defer": ""} == plain[row["path"]] | {"defer": ""} for row in shown)


def test_what_is_rounded_is_only_what_is_shown() -> None:
    (marked,) = rows_of(["a.png"], table_of(a=0.9999996), ["cat"], 0.9999999)
    (small,) = rows_of(["a.png"], table_of(a=0.123456789), ["cat"], None)
    assert marked["defer"] == "yes"
    assert as_csv([marked]) == "a.png,cat,1.0,3,,,yes"
    assert as_csv([small]) == "a.png,cat,0.123457,3,,"


def test_rows_have_every_digit(folder: Path, toy: Dataset) -> None:
    model = cotrain.load(folder / "run")
    (row,) = model.predict_files([folder / "photos" / "3.png"])
    assert row["probability"] == model.predict(toy.images[3:4]).probabilities.max()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "calibrated: temperature 1.5, fitted on 24 validation images, {wrong} of them wrong (fewer than 10, so"),
        ({"temperature_fitted_on": {"valid_images": 24, "wrong": 11}}, "on 24 validation images, 11 of them wrong\n"),
        ({"temperature_fitted_on": None}, "calibrated: temperature 1.5, fitted on 24 validation images\n"),
        ({"temperature": None}, "result.json has no temperature"),
    ],
)
def test_predict_says_how_its_probabilities_are_calibrated(
    changes: dict, expected: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    result = read_json(folder / "run" / "result.json")
    write_json(tmp_path / "run" / "result.json", result | changes)
    main(["predict", str(tmp_path / "run"), str(folder / "photos")])
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert expected.format(wrong=result["temperature_fitted_on"]["wrong"]) in errors


def test_validation_images_guarantee_an_error(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    logits = torch.randn(3, 3000, 2, generator=torch.Generator().manual_seed(0)).mul(4)
    probabilities = with_temperature(logits, 1.0, "probabilities")
    labels = probabilities.argmax(-1)
    wrong = probabilities.max(-1).values < 0.7
    labels[wrong] = 1 - labels[wrong]
    split = read_json(tmp_path / "run" / "split.json")
    write_json(tmp_path / "run" / "split.json", split | {"valid": [*range(3000)]})
    write_outputs(tmp_path / "run" / "scores.npz", {"valid": Outputs(logits, labels, np.arange(3000))})
    main(["predict", str(tmp_path / "run"), str(folder / "photos"), "--target-error", "0.05"])
    out, errors = capsys.readouterr()
    found = re.search(
        r"deferring images with a probability below ([\d.e-]+): \d+ of the other \d+ validation images were wrong, "
        r"so the error on images like them is at most",
        errors,
    )
    assert found is not None
    threshold = float(found[1])
    for row in csv.DictReader(out.splitlines()):
        assert row["defer"] == ("yes" if not row["probability"] or float(row["probability"]) < threshold else "no")


@pytest.mark.parametrize(
    ("bound", "shown"),
    [(4.72, "4.8"), (4.7, "4.7"), (0.121, "0.13"), (9.96, "10"), (12.01, "13"), (100.0, "100"), (0.05, "0.05")],
)
def test_a_bound_is_rounded_up(bound: float, shown: str) -> None:
    assert rounded_up(bound) == shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--target-error 0.01",
            "24 validation images cannot guarantee an error of at most 1 % at any threshold: that ",
        ),
        ("--target-error 0.01", "that takes about 528 without a mistake; raise --target-error"),
        ("--target-error 0", "that takes infinitely many without a mistake"),
        ("--target-error 0.01 --defer-below 0.5", "use only one"),
        ("--defer-below 90", "Must be <= 1"),
    ],
)
def test_what_cannot_be_guaranteed_is_one_line(
    words: str, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        predicted(capsys, folder, *words.split())
    out, errors = capsys.readouterr()
    assert (end.value.code, out, errors.count("\n")) == (2, "", 1)
    assert expected in errors


def test_without_validation_images_no_error_can_be_guaranteed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    write_outputs(tmp_path / "run" / "scores.npz", {})
    with pytest.raises(SystemExit):
        main(["predict", str(tmp_path / "run"), str(folder / "photos"), "--target-error", "0.05"])
    assert "needs validation images, but" in (errors := capsys.readouterr().err)
    assert "has none: train with data.valid_share=0.2" in errors
