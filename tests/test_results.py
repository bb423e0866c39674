"""Whole trainings, as long as they take."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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


@pytest.mark.realdata
def test_a_real_folder_is_what_it_is() -> None:
    if "COTRAIN_DATA" not in os.environ:
        pytest.skip("COTRAIN_DATA does not name a folder with miniimagenet/")
    folder = Path(os.environ["COTRAIN_DATA"]) / "miniimagenet"
    dataset = cotrain.open_data(folder)
    assert (len(dataset.classes), len(dataset.train), len(dataset.test)) == (100, 3000, 500)
    assert dataset.shape == (84, 84, 3)
    assert dataset.unreadable == {}
    for row in (0, 1234, 3499):
        with Image.open(folder / dataset.paths[row]) as file:
            np.testing.assert_array_equal(dataset.images[row].numpy(), np.asarray(file.convert("RGB")))
