"""The outputs that a run keeps for its test and validation images, and the scores computed from them."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import cotrain
from cotrain import Config, Dataset, UserError
from cotrain.evaluation.calibration import calibration, confidence_and_right, fit_temperature, with_temperature
from cotrain.evaluation.verdict import verdict
from cotrain.fitting.evaluate import evaluate
from cotrain.report.page import Subject, show
from cotrain.runs.run import Run
from cotrain.runs.scores import read_outputs
from tests.made_up import made_up_run, some_data


@pytest.fixture(scope="module")
def run(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    batches = {"optim.steps": 20, "optim.labelled": 8, "optim.unlabelled": 16, "run.report": False}
    out = tmp_path_factory.mktemp("scored") / "run"
    config = cotrain.recipe_named("digits")
    cotrain.fit(toy, out=out, config=config, settings={"data.labels": 40, "data.valid_share": 0.3, **batches})
    return Run.open(out)


def test_anybody_can_compute_the_errors_again(run: Run, toy: Dataset) -> None:
    with np.load(run.scores_path) as kept:
        logits, labels, rows = kept["test_logits"], kept["test_labels"], kept["test_rows"]
    assert logits.shape == (3, 40, 2)
    assert rows.tolist() == list(run.split.test)
    assert labels.tolist() == toy.labels[rows].tolist()
    powers = np.exp(logits.astype(np.float64))
    together = (powers / powers.sum(-1, keepdims=True)).mean(0).argmax(-1)
    assert 100 * (together != labels).mean() == pytest.approx(run.result["test_error"])
    assert [100 * (head.argmax(-1) != labels).mean() for head in logits] == pytest.approx(run.result["head_errors"])


def test_the_result_has_the_calibration_of_ensemble_and_heads(run: Run) -> None:
    kept, found = read_outputs(run.scores_path), run.result["calibration"]
    test, valid = kept["test"], kept["valid"]
    assert [*found["ensemble"]] == ["as it is", "paper", "fitted"]
    assert len(found["heads"]) == 3
    assert found["ensemble"]["paper"]["temperature"] == 2
    assert found["ensemble"]["as it is"]["ece"] == run.result["ece"]
    for one in found["ensemble"].values():
        again = calibration(with_temperature(test.logits, one["temperature"], "probabilities"), test.labels)
        assert vars(again) == pytest.approx({key: value for key, value in one.items() if key != "temperature"})
    assert found["ensemble"]["fitted"]["temperature"] == run.result["temperature"]
    assert run.result["temperature"] == fit_temperature(valid.logits, valid.labels, "probabilities")


def test_every_head_is_calibrated_with_every_temperature(run: Run) -> None:
    test, found = read_outputs(run.scores_path)["test"], run.result["calibration"]
    for logits, of_head in zip(test.logits.double(), found["heads"], strict=True):
        assert [*of_head] == [*found["ensemble"]]
        for name, one in of_head.items():
            assert one["temperature"] == found["ensemble"][name]["temperature"]
            again = calibration((logits / one["temperature"]).softmax(dim=-1), test.labels)
            assert {**vars(again), "temperature": one["temperature"]} == pytest.approx(one)


def test_the_page_has_the_numbers_of_the_result(run: Run) -> None:
    found, result = show(Subject(run, None)).results, run.result
    assert (found.error, [*found.interval], found.ece, found.aurc) == tuple(
        result[key] for key in ("test_error", "test_interval", "ece", "aurc")
    )
    assert found.heads.errors == result["head_errors"] == result["heads"]["errors"]
    assert found.calibration == result.test.calibration
    assert found.temperature == result["temperature"]


def test_the_result_has_the_area_under_risk_and_coverage(run: Run) -> None:
    test = read_outputs(run.scores_path)["test"]
    confidence, right = confidence_and_right(with_temperature(test.logits, 1.0, "probabilities"), test.labels)
    most_confident = np.argsort(-confidence)
    risks = [100 * (~right[most_confident[:answered]]).mean() for answered in range(1, len(right) + 1)]
    assert len(set(confidence)) == len(confidence), "without ties"
    assert run.result["aurc"] == pytest.approx(np.mean(risks))


def test_without_validation_images_nothing_is_fitted_and_without_test_images_nothing_is_scored(
    toy: Dataset, tiny: Config, tmp_path: Path
) -> None:
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=tiny)
    assert [*fitted.result["calibration"]["ensemble"]] == ["as it is", "paper"]
    no_test = cotrain.from_arrays(toy.images[:80], toy.labels[:80])
    untested = cotrain.fit(no_test, out=tmp_path / "untested", config=tiny.changed({"data.test_share": 0.0}))
    assert untested.result["calibration"] is None and untested.result["ece"] is None
    assert read_outputs(tmp_path / "untested" / "scores.npz") == {}


def test_validation_images_calibrate_without_test_images(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    images, labels = toy.images.numpy(), toy.labels.numpy().copy()
    labels[60:80] = labels[60:80][::-1]  # about half of them wrong
    dataset = cotrain.from_arrays(images[:60], labels[:60], valid=(images[60:80], labels[60:80]))
    fitted = cotrain.fit(dataset, out=tmp_path / "run", config=tiny.changed({"data.test_share": 0.0}))
    valid = read_outputs(tmp_path / "run" / "scores.npz")["valid"]
    wrong = int((with_temperature(valid.logits, 1.0, "probabilities").argmax(-1) != valid.labels).sum())
    assert fitted.result["calibration"] is None
    assert fitted.result["temperature_fitted_on"] == {"valid_images": 20, "wrong": wrong}
    assert fitted.result["temperature"] == fit_temperature(valid.logits, valid.labels, "probabilities") > 1
    assert cotrain.load(tmp_path / "run").temperature == fitted.result["temperature"]


def test_the_temperature_of_an_older_run_is_found(run: Run, tmp_path: Path) -> None:
    dataset = some_data()
    old = {"calibration": {"ensemble": {"as it is": {"temperature": 1.0}, "fitted": {"temperature": 1.7}}}}
    assert cotrain.load(made_up_run(tmp_path / "old", dataset, result=old).folder).temperature == 1.7
    assert cotrain.load(made_up_run(tmp_path / "raw", dataset, result={"calibration": None}).folder).temperature == 1
    new = {"temperature": 1.3, **old}
    assert cotrain.load(made_up_run(tmp_path / "new", dataset, result=new).folder).temperature == 1.3


def test_there_are_warnings_without_test_images(tmp_path: Path) -> None:
    dataset = some_data(test=0)
    alike = {"data.valid_share": 0.3, "model.head_init": "copied"}
    run = made_up_run(tmp_path / "alike", dataset, alone=None, changes=alike)
    (warning,) = evaluate(run, dataset)["warnings"]
    assert warning.startswith(
        "the heads have become too similar to learn from each other: they disagree on 0.00 % of the validation images "
        "and on 0.00 % of the"
    )
    run = made_up_run(tmp_path / "idle", dataset, alone=None)
    assert run.split.valid == run.split.test == ()
    assert evaluate(run, dataset)["warnings"] == []
    run.log_path.write_text("".join(json.dumps({"step": step, "agreement": 0.0}) + "\n" for step in range(10)))
    (warning,) = evaluate(run, dataset)["warnings"]
    assert "for 100 % of the training, no pseudo-label was selected" in warning


def test_the_baseline_keeps_its_scores_for_the_same_images(run: Run) -> None:
    ours, theirs = read_outputs(run.scores_path)["test"], read_outputs(run.baseline_folder / "scores.npz")["test"]
    assert np.array_equal(ours.rows, theirs.rows) and torch.equal(ours.labels, theirs.labels)
    assert not torch.equal(ours.logits, theirs.logits)


def test_the_verdict_is_in_the_result(run: Run) -> None:
    ours, theirs = read_outputs(run.scores_path)["test"], read_outputs(run.baseline_folder / "scores.npz")["test"]
    assert run.result.verdict == verdict(ours, theirs, "probabilities")
    assert run.result["verdict"]["labelled_only"] == pytest.approx(run.result["labelled_only_error"])
    assert run.result["verdict"]["error"] == pytest.approx(run.result["test_error"])


def test_the_result_says_how_long_the_baseline_was_trained(run: Run) -> None:
    baseline = Run.open(run.baseline_folder).result
    assert run.result["labelled_only_seconds"] == baseline["seconds"] > 0
    assert baseline["steps"] == run.result["steps"] == 20


def test_a_method_without_unlabelled_images_is_not_compared_with_itself(
    toy: Dataset, tiny: Config, tmp_path: Path
) -> None:
    config = tiny.changed({"method": "supervised", "run.baseline": True})
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=config)
    assert not (tmp_path / "run" / "labelled_only").exists()
    for name in ("verdict", "labelled_only_error", "labelled_only_seconds"):
        assert fitted.result[name] is None
    assert fitted.result["test_error"] is not None


def test_without_images_to_compare_on_no_baseline_is_trained(
    toy: Dataset, tiny: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny.changed({"data.test_share": 0.0, "run.baseline": True})
    dataset = cotrain.from_arrays(toy.images[:60].numpy(), toy.labels[:60].numpy())
    fitted = cotrain.fit(dataset, out=tmp_path / "run", config=config, console=Console())
    printed = " ".join(capsys.readouterr().out.split())
    assert "the test error will be unknown no labelled-only baseline is trained" in printed
    assert not (tmp_path / "run" / "labelled_only").exists()
    assert fitted.result["test_error"] is fitted.result["labelled_only_error"] is None


def as_file(arrays: np.ndarray | dict[str, list[str]]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays) if isinstance(arrays, dict) else np.save(content, arrays)
    return content.getvalue()


@pytest.mark.parametrize("content", [b"PK nothing", b"", None, as_file(np.arange(3)), as_file({"test_logits": ["a"]})])
def test_damaged_scores_are_named(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "scores.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"scores\.npz is missing or damaged"):
        read_outputs(tmp_path / "scores.npz")
