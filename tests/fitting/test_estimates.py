"""A run without test images, on features: its estimated error, its baselines, and which model is used."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Dataset, UserError
from cotrain.cli.main import main
from cotrain.fitting import crossvalidation
from cotrain.fitting.crossvalidation import FOLDS, save_folds
from cotrain.inference.model import how_calibrated, promised_threshold
from cotrain.model import MultiHead
from cotrain.report.page import Subject, page, show
from cotrain.runs.result import Result
from cotrain.runs.run import Run
from cotrain.runs.scores import HELD_OUT, read_outputs
from cotrain.storage.reading import arrays_of
from cotrain.storage.rows import keep, kept
from cotrain.training.experiment import Experiment
from tests.report.reading import Read, words
from tests.trunk.fixtures import shared_home, tiny_is_known  # noqa: F401
from tests.trunk.tiny import CONFIG, small_data

ESTIMATED = CONFIG.changed(
    {"run.baseline": True, "run.repeats": 2, "run.folds": 2, "data.test_share": 0.0, "data.labels": 16}
)


pytestmark = pytest.mark.usefixtures("shared_home")


@pytest.fixture(scope="module")
def data() -> Dataset:
    whole = small_data()
    return replace(whole, test=np.zeros(0, np.int64), valid=np.zeros(0, np.int64))


@pytest.fixture(scope="module")
def fitted(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> cotrain.Fitted:
    return cotrain.fit(data, out=tmp_path_factory.mktemp("runs") / "run", config=ESTIMATED)


def folds_in(folder: Path) -> dict[str, np.ndarray]:
    content = kept(folder / FOLDS, Run.open(folder).split.hash)
    assert content is not None
    return arrays_of(content)


def test_the_error_is_recomputed_from_what_each_fold_predicted(fitted: cotrain.Fitted, data: Dataset) -> None:
    run, checked = Run.open(fitted.folder), fitted.result["cross_validation"]
    assert len(run.split.labelled) == 16 and not run.split.test, "all labels are used"
    assert fitted.result["test_error"] is None and checked["images"] == 16
    folds = crossvalidation.folds_of(run.split, data.labels, 2, 2, run.config.run.seed)
    found = folds_in(fitted.folder)
    for name, one in checked["errors"].items():
        wrong = []
        for number, fold in enumerate(folds):
            logits = torch.from_numpy(found[f"{name}/{number}"])
            predicted = logits.double().softmax(-1).mean(0).argmax(-1)
            wrong += (predicted != data.labels[fold.held]).tolist()
        assert one["error"] == pytest.approx(100 * np.mean(wrong))
        assert one["low"] <= one["error"] <= one["high"]
    assert [*checked["errors"]] == ["method", "labelled_only", "logistic_regression"]


def test_held_out_labels_calibrate_the_probabilities(fitted: cotrain.Fitted) -> None:
    outputs = read_outputs(fitted.folder / "scores.npz")
    assert sorted(outputs[HELD_OUT].rows) == sorted(Run.open(fitted.folder).split.labelled)
    assert fitted.result["temperature_fitted_on"]["held_out_images"] == 16
    assert "fitted on 16 held-out labelled images" in how_calibrated(fitted.folder)
    assert fitted.model.temperature == fitted.result["temperature"]


def test_the_page_says_what_the_temperature_was_fitted_on(fitted: cotrain.Fitted, data: Dataset) -> None:
    read = Read(page([show(Subject(Run.open(fitted.folder), data))]))
    calibration = words(read, "calibration")
    assert (
        "The temperature was fitted on 16 held-out labelled images. These are the images measured here" in calibration
    )
    assert "are these labelled images, as predicted in the first of the 2 rounds." in words(read, "verdict")
    assert "with the temperature fitted on 16 held-out labelled images" in words(read, "selective")
    assert "validation images" not in calibration
    with pytest.raises(UserError, match=r"^16 held-out labelled images cannot guarantee an error of at most 1 %"):
        promised_threshold(fitted.folder, fitted.model, 0.01)


def test_every_model_of_the_run_can_be_used(fitted: cotrain.Fitted, data: Dataset) -> None:
    images = data.images[:6]
    by_name = {
        name: cotrain.load(fitted.folder, use=name).predict(images) for name in Run.open(fitted.folder).baselines
    }
    assert [*by_name] == ["labelled_only", "logistic_regression"]
    ours = cotrain.load(fitted.folder, use="method").predict(images)
    assert all(not np.allclose(ours.probabilities, each.probabilities) for each in by_name.values())
    with pytest.raises(UserError, match="has no model 'better_still'; it has: method, labelled_only, logistic_reg"):
        cotrain.load(fitted.folder, use="better_still")


def test_a_baseline_that_is_clearly_better_is_used_and_said_first(
    fitted: cotrain.Fitted, data: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fitted.folder / "result.json"
    before = path.read_bytes()
    try:
        path.write_text(json.dumps({**fitted.result, "used": "logistic_regression"}))
        chosen, wanted = (cotrain.load(fitted.folder, **use) for use in ({}, {"use": "logistic_regression"}))
        images = data.images[:6]
        assert np.array_equal(chosen.predict(images).probabilities, wanted.predict(images).probabilities)
        from cotrain.cli.result_table import result_table

        table = result_table(Run.open(fitted.folder), Result.read(path))
        title = "Result: the baseline (logistic regression) is clearly better in cross-validation"
        assert str(table.title).startswith(title)
    finally:
        path.write_bytes(before)


def test_finished_folds_are_not_repeated(
    fitted: cotrain.Fitted, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, real = [], crossvalidation.trained_net

    def counted(experiment: Experiment) -> MultiHead:
        trained.append(experiment)
        if len(trained) == 5:
            raise KeyboardInterrupt
        return real(experiment)

    monkeypatch.setattr(crossvalidation, "trained_net", counted)
    with pytest.raises(Exception, match="resume"):
        cotrain.fit(data, out=tmp_path / "run", config=ESTIMATED)
    again = cotrain.fit(data, out=tmp_path / "run", config=ESTIMATED, resume=True)
    assert len(trained) == 5 + 4, "two folds of two trainings were kept"
    assert again.result["cross_validation"] == fitted.result["cross_validation"]


def cut_off(path: Path, found: dict[str, np.ndarray], split: str) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def of_another_split(path: Path, found: dict[str, np.ndarray], split: str) -> None:
    save_folds(path, {key: np.zeros_like(array) for key, array in found.items()}, "another")


def no_arrays(path: Path, found: dict[str, np.ndarray], split: str) -> None:
    keep(path, b"no arrays", split)


def other_heads(path: Path, found: dict[str, np.ndarray], split: str) -> None:
    save_folds(path, {**found, "method/1": found["method/1"][:1]}, split)


def other_types(path: Path, found: dict[str, np.ndarray], split: str) -> None:
    save_folds(path, {key: np.array("text") for key in found}, split)


@pytest.mark.parametrize("damage", [cut_off, of_another_split, no_arrays, other_heads, other_types])
def test_damaged_folds_are_trained_again(
    damage: Callable[..., None], fitted: cotrain.Fitted, data: Dataset, tmp_path: Path
) -> None:
    """Wherever the folder of the run comes from."""
    shutil.copytree(fitted.folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    damage(tmp_path / "run" / FOLDS, folds_in(fitted.folder), Run.open(fitted.folder).split.hash)
    again = cotrain.fit(data, out=tmp_path / "run", config=ESTIMATED, resume=True)
    assert again.result["cross_validation"] == fitted.result["cross_validation"]


def test_too_few_labels_for_an_estimate(data: Dataset, tmp_path: Path) -> None:
    few = cotrain.fit(data, out=tmp_path / "run", config=ESTIMATED.changed({"data.labels": 4}))
    assert few.result["cross_validation"] is None and few.result["used"] == "method"


def test_a_wrong_number_of_views_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", "digits", "--views", "3"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "cotrain: --views 3: write WEAK+STRONG, for example 2+4\n"
