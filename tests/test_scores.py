"""What a run keeps of its last look at test and valid images, and what is computed from it."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Config, Dataset, UserError
from cotrain.calibrate import calibration, with_temperature
from cotrain.evaluate import read_outputs
from cotrain.run import Run
from cotrain.verdict import verdict


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
    fitted = found["ensemble"]["fitted"]["temperature"]
    costs = [
        calibration(with_temperature(valid.logits, fitted * factor, "probabilities"), valid.labels).nll
        for factor in (0.9, 1.0, 1.1)
    ]
    assert min(costs) == pytest.approx(costs[1], abs=1e-6)


def test_without_valid_images_nothing_is_fitted_and_without_test_images_nothing_is_known(
    toy: Dataset, tiny: Config, tmp_path: Path
) -> None:
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=tiny)
    assert [*fitted.result["calibration"]["ensemble"]] == ["as it is", "paper"]
    alone = cotrain.from_arrays(toy.images[:80], toy.labels[:80])
    untested = cotrain.fit(alone, out=tmp_path / "untested", config=tiny.changed({"data.test_share": 0.0}))
    assert untested.result["calibration"] is None and untested.result["ece"] is None
    assert read_outputs(tmp_path / "untested" / "scores.npz") == {}


def test_the_yardstick_keeps_its_scores_for_the_same_images(run: Run) -> None:
    ours, theirs = read_outputs(run.scores_path)["test"], read_outputs(run.baseline_folder / "scores.npz")["test"]
    assert np.array_equal(ours.rows, theirs.rows) and torch.equal(ours.labels, theirs.labels)
    assert not torch.equal(ours.logits, theirs.logits)


def test_the_verdict_is_in_the_result(run: Run) -> None:
    ours, theirs = read_outputs(run.scores_path)["test"], read_outputs(run.baseline_folder / "scores.npz")["test"]
    assert run.result["verdict"] == asdict(verdict(ours, theirs, "probabilities"))
    assert run.result["verdict"]["labelled_only"] == pytest.approx(run.result["labelled_only_error"])
    assert run.result["verdict"]["error"] == pytest.approx(run.result["test_error"])


def test_damaged_scores_are_named(tmp_path: Path) -> None:
    (tmp_path / "scores.npz").write_bytes(b"PK nothing")
    for path in (tmp_path / "scores.npz", tmp_path / "missing.npz"):
        with pytest.raises(UserError, match="is not there or damaged"):
            read_outputs(path)
