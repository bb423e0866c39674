"""Whole trainings, as long as they take."""

import os
from pathlib import Path

import pytest

import cotrain


@pytest.mark.slow
def test_unlabelled_digits_at_least_halve_the_error(tmp_path: Path) -> None:
    fitted = cotrain.fit("digits", out=tmp_path / "run")
    assert fitted.result["test_error"] <= 3
    assert fitted.result["test_error"] <= fitted.result["labelled_only_error"] / 2


@pytest.mark.realdata
def test_real_colour_images_train(tmp_path: Path) -> None:
    if "COTRAIN_DATA" not in os.environ:
        pytest.skip("COTRAIN_DATA does not name a folder with cifar10.npz")
    data = Path(os.environ["COTRAIN_DATA"]) / "cifar10.npz"
    fitted = cotrain.fit(data, out=tmp_path / "run", settings={"data.labels": 1000, "optim.steps": 100})
    assert fitted.result["test_error"] < 85
