"""Finishing writes the run that `cotrain fit` would write from the same labels, and predictions for every image."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import cotrain
from cotrain.cli.predict import predict_command
from cotrain.labelling.events import Finish
from cotrain.labelling.finish import PREDICTIONS, Finishing, began, finish
from cotrain.labelling.revision import Revision
from cotrain.runs.run import MADE_FROM
from cotrain.storage.cells import from_safe
from cotrain.types import UserError
from tests.trunk.tiny import QUIET, small_data

SETTINGS = {
    "model.backbone": "tiny",
    "model.hidden": 8,
    "optim.steps": 6,
    "optim.labelled": 4,
    "optim.unlabelled": 8,
    "run.runtime": "torch",
    "run.repeats": 1,
    "run.folds": 2,
    "run.device": "cpu",
}
CLASSES = ("rot", "grün", "=blue, 'dark'")


def photos(folder: Path, labels: int = 12) -> Path:
    """24 images, the first of them labelled in labels.csv."""
    folder.mkdir()
    data = small_data(24, 0, 0)
    for row, image in enumerate(data.images.numpy()):
        Image.fromarray(image).save(folder / f"{row:02d} ä.png")
    label(folder, labels)
    return folder


def label(folder: Path, labels: int) -> None:
    with open(folder / "labels.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        writer.writerows([f"{row:02d} ä.png", CLASSES[row % 3]] for row in range(labels))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("finish a folder")
    folder = photos(base / "photos")
    return folder, finish(folder, base / "run", QUIET, SETTINGS)


@pytest.mark.system
def test_the_model_is_that_of_fit_bit_for_bit(finished: tuple[Path, Path], tmp_path: Path) -> None:
    folder, run = finished
    fitted = cotrain.fit(folder, out=tmp_path / "fit", settings=SETTINGS)
    for name in ("model.safetensors", "labelled_only/model.safetensors", "logistic_regression/model.safetensors"):
        assert (run / name).read_bytes() == (fitted.folder / name).read_bytes(), name
    assert (run / "config.json").read_bytes() == (fitted.folder / "config.json").read_bytes()
    assert (run / "split.json").read_bytes() == (fitted.folder / "split.json").read_bytes()
    assert (run / "label_next.csv").read_bytes() == (fitted.folder / "label_next.csv").read_bytes()
    assert (run / "report.html").stat().st_size > 10_000


def test_every_image_is_predicted_as_predict_does(finished: tuple[Path, Path]) -> None:
    folder, run = finished
    with open(run / PREDICTIONS, newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert [Path(row["path"]).name for row in rows] == sorted(path.name for path in folder.glob("*.png"))
    expected = cotrain.load(run).predict_files([row["path"] for row in rows], workers=0)
    for row, other in zip(rows, expected, strict=True):
        assert (from_safe(row["class"]), row["error"]) == (other["class"], "")
        assert float(row["probability"]) == pytest.approx(other["probability"], abs=1e-6)
        assert from_safe(row["class"]) in CLASSES


def test_the_table_is_that_of_the_command_byte_for_byte(finished: tuple[Path, Path], tmp_path: Path) -> None:
    folder, run = finished
    predict_command(run, folder, out=tmp_path / "predictions.csv")
    assert (run / PREDICTIONS).read_bytes() == (tmp_path / "predictions.csv").read_bytes()


def test_finishing_again_changes_nothing_and_repairs_what_is_missing(finished: tuple[Path, Path]) -> None:
    folder, run = finished
    before = (run / "model.safetensors").stat().st_mtime_ns, (run / PREDICTIONS).read_bytes()
    (run / PREDICTIONS).unlink()
    assert finish(folder, run, QUIET, SETTINGS) == run
    assert ((run / "model.safetensors").stat().st_mtime_ns, (run / PREDICTIONS).read_bytes()) == before


def test_other_labels_need_another_folder(tmp_path: Path, finished: tuple[Path, Path]) -> None:
    _, run = finished
    other = photos(tmp_path / "photos", labels=15)
    with pytest.raises(UserError, match=r"is not the data .* was made from"):
        finish(other, run, QUIET, SETTINGS)


def test_too_few_labels_are_one_line_and_no_run(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", labels=1)
    with pytest.raises(UserError, match="at least two classes are needed"):
        finish(folder, tmp_path / "run", QUIET, SETTINGS)
    assert not (tmp_path / "run").exists()


def test_a_journal_of_somebody_else_does_not_say_where_the_run_is_written(tmp_path: Path) -> None:
    folder, victim = photos(tmp_path / "photos"), tmp_path / "other run"
    victim.mkdir()
    (victim / "config.json").write_text("{}")
    (victim / MADE_FROM).write_text('"another key"')
    event = Finish(id=1, time="", who="cotrain", how="click", out=str(victim), key="a key")
    assert not began(event) and not began(event.model_copy(update={"out": r"\\\\host\\share"}))
    (victim / MADE_FROM).write_text('"a key"')
    assert began(event)
    (victim / MADE_FROM).write_text("{")
    assert not began(event)
    history = SimpleNamespace(last_finish=event)
    finishing = Finishing(folder, tmp_path / "run", {}, history, "images", Revision())  # type: ignore[arg-type]
    assert (finishing.stage, finishing.line) == ("idle", "")
