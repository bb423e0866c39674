"""From a table to a finished run, its page, its predictions and its ONNX file."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from rich.console import Console
from sklearn.datasets import load_wine

import cotrain
from cotrain.cli.main import main
from cotrain.cli.result_table import result_table
from cotrain.data import DataSettings
from cotrain.runs.result import Result
from cotrain.runs.run import Run

TARGET = DataSettings(target="cultivar")
SETTINGS = {"optim.steps": 15, "run.repeats": 1, "run.folds": 2, "data.target": "cultivar"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wines: wine.csv has 30 labels, new.csv the other rows; one column is of words."""
    folder, wine = tmp_path_factory.mktemp("wine"), load_wine()
    order = np.random.default_rng(0).permutation(len(wine.target))
    for name, rows, known in (("wine.csv", order[:120], 30), ("new.csv", order[120:], 0)):
        with open(folder / name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*wine.feature_names, "strong", "cultivar"])
            for number, row in enumerate(rows):
                word = "yes" if wine.data[row, 0] > 13 else "no"
                label = f"kind {wine.target[row]}" if number < known else ""
                writer.writerow([*wine.data[row], word, label])
    return folder


@pytest.fixture(scope="module")
def said() -> io.StringIO:
    """What `fit` prints."""
    return io.StringIO()


@pytest.fixture(scope="module")
def run(folder: Path, said: io.StringIO) -> Run:
    (folder / "images.csv").write_bytes((folder / "wine.csv").read_bytes())
    console = Console(file=said, width=400)
    cotrain.fit(folder / "images.csv", out=folder / "runs" / "images", settings=SETTINGS, console=console)
    return Run.open(folder / "runs" / "images")


def test_the_error_is_compared_with_what_else_one_would_do(run: Run) -> None:
    checked = run.result["cross_validation"]
    assert [*checked["errors"]] == [
        "method",
        "labelled_only",
        "logistic_regression",
        "random_forest",
        "label_spreading",
    ]
    assert checked["images"] == 30
    assert checked["errors"]["method"]["error"] < 20


def test_the_console_speaks_of_rows_and_keeps_the_names(run: Run, said: io.StringIO) -> None:
    Console(file=said, width=400).print(result_table(run, run.result))
    text = said.getvalue()
    assert text.startswith("images: a table of 13 columns")
    assert text.count(str(run.folder)) >= 3, "before training, and the run folder and its report in the result"
    assert "30 labelled, 120 unlabelled and 0 test rows" in text
    assert "image" not in text.replace(str(run.folder), "").removeprefix("images")


@pytest.mark.parametrize("rival", ["random_forest", "label_spreading"])
def test_a_rival_that_is_clearly_better_is_the_news(run: Run, rival: str) -> None:
    against = {"baseline": rival, "word": "hurt", "difference": 9.0, "low": 3.0, "high": 12.0}
    changed = {**run.result, "cross_validation": {**run.result["cross_validation"], "against": against}}
    title = str(result_table(run, Result.parse(changed, run.folder)).title)
    assert f"{rival.replace('_', ' ')} is clearly better here" in title


def test_the_page_shows_rows(run: Run) -> None:
    page = (run.folder / "report.html").read_text()
    assert "Did the unlabelled rows help?" in page
    assert "random forest on the same features" in page
    assert '<th scope="col">malic_acid</th>' in page
    assert "data:image/png" not in page
    assert "The table as it is" in page and "This run does not know" not in page
    about, _ = page.split("<summary>All settings</summary>")  # which are also those of images
    said = re.sub(r"<(style|script).*?</\1>|<[^>]*>", "", about, flags=re.DOTALL)
    assert str(run.folder) in said and "images.csv" in said
    assert "image" not in re.sub(r"images\.csv|images-30-equal", "", said.replace(str(run.folder), ""))


def test_the_card_speaks_of_rows(run: Run) -> None:
    text, *_ = (run.folder / "README.md").read_text().split("<details><summary>Settings")
    assert "pipeline_tag: tabular-classification" in text
    assert "14 columns" in text
    assert "# images\n" in text and "| data | images.csv |" in text
    named = re.sub(r'^# images$|"images"|images\.csv|images-30-equal', "", text, flags=re.MULTILINE)
    assert "image" not in named


def test_predict_speaks_of_rows(run: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "images.out.csv"
    main(["predict", str(run.folder), str(folder / "new.csv"), "--out", str(out), "--target-error", "0.5"])
    said = capsys.readouterr()
    assert f"58 rows, {said.out.split()[2]} deferred -> {out}" in said.out
    assert "of the other 30 held-out labelled rows were wrong, so the error on rows like them" in said.err
    assert "does not cover rows that belong to no class" in said.err
    assert "image" not in said.err.replace(str(run.folder), "")


def test_predictions_of_a_table_are_a_table(run: Run, folder: Path, tmp_path: Path) -> None:
    main(["predict", str(run.folder), str(folder / "new.csv"), "--out", str(tmp_path / "preds.csv")])
    with open(tmp_path / "preds.csv") as file:
        rows = [*csv.DictReader(file)]
    assert [row["row"] for row in rows] == [str(number) for number in range(58)]
    assert {row["class"] for row in rows} == {"kind 0", "kind 1", "kind 2"}
    predicted = cotrain.load(run.folder).predict(cotrain.open_data(folder / "wine.csv", TARGET).images[:])
    assert len(predicted) == 120
    main(
        [
            "predict",
            str(run.folder),
            str(folder / "new.csv"),
            "--out",
            str(tmp_path / "sorted.csv"),
            "--defer-below",
            "1",
        ]
    )
    with open(tmp_path / "sorted.csv") as file:
        certain = [float(row["probability"]) for row in csv.DictReader(file)]
    assert certain == sorted(certain)


def test_a_table_without_a_column_of_the_model(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.csv").write_text("alcohol,hue\n1,2\n")
    with pytest.raises(SystemExit) as end:
        main(["predict", str(run.folder), str(tmp_path / "new.csv")])
    assert end.value.code == 2
    assert "has no column 'malic_acid'" in capsys.readouterr().err


@pytest.mark.system
def test_the_onnx_file_gives_the_same_probabilities(run: Run, folder: Path, tmp_path: Path) -> None:
    exported = cotrain.export(run.folder, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [entry.name for entry in session.get_inputs()] == ["features"]
    values = cotrain.open_data(folder / "wine.csv", TARGET).images[:]
    values[0, :-1], values[1, :-1] = 3e38, -3e38
    (found,) = session.run(["probabilities"], {"features": values.astype(np.float32)})
    assert np.isfinite(found).all()
    assert np.allclose(found, cotrain.load(run.folder).predict(values).probabilities, atol=1e-5)
    columns = json.loads(session.get_modelmeta().custom_metadata_map["columns"])
    assert columns[-1] == {"name": "strong", "categories": ["no", "yes"]}
    assert exported.difference < 1e-5


def test_data_check_shows_the_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "check", str(folder / "wine.csv"), "--target", "cultivar"])
    shown = capsys.readouterr().out
    assert "malic_acid" in shown
    assert "2 categories" in shown
    assert "the labelled rows, by cross-validation" in shown


def test_a_method_that_needs_pixels_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(cotrain.UserError, match="remixmatch augments pixels; choose another method for a table"):
        cotrain.fit(folder / "wine.csv", out=tmp_path / "run", settings={**SETTINGS, "method": "remixmatch"})
    with pytest.raises(cotrain.UserError, match="wrn-10-1 takes images"):
        cotrain.fit(folder / "wine.csv", out=tmp_path / "run", settings={**SETTINGS, "model.backbone": "wrn-10-1"})
