"""The Python interface: fit, load, predict."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import cotrain
from cotrain import Config, Dataset, Fitted, UserError
from cotrain.comparison.studies import study
from cotrain.data import open_data
from cotrain.runs.result import Result


@pytest.fixture(scope="module")
def fitted(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    config = cotrain.recipe_named("digits").changed(
        {"data.labels": 8, "optim.steps": 40, "optim.labelled": 8, "optim.unlabelled": 16}
    )
    return cotrain.fit(toy, out=tmp_path_factory.mktemp("api") / "run", config=config)


def test_fit_learns_and_says_so(fitted: Fitted) -> None:
    assert fitted.result["test_error"] < 10
    assert fitted.result["labelled_only_error"] is not None
    assert fitted.result.test.error == fitted.result["test_error"]
    assert fitted.result == fitted.run.result == Result.read(fitted.folder / "result.json")


def test_a_loaded_model_predicts_what_the_result_says(fitted: Fitted, toy: Dataset) -> None:
    predictions = cotrain.load(fitted.folder).predict(toy.images[toy.test])
    wrong = predictions.labels != toy.labels[toy.test].numpy()
    assert 100 * wrong.mean() == pytest.approx(fitted.result["test_error"])
    assert predictions.probabilities.shape == (40, 2)
    np.testing.assert_allclose(predictions.probabilities.sum(axis=1), 1)
    assert set(predictions.names) == {"above", "below"}
    assert set(predictions.heads_agree.tolist()) <= {0, 1, 2, 3}


def test_numpy_tensors_and_missing_channel_are_the_same_images(fitted: Fitted, toy: Dataset) -> None:
    model, images = fitted.model, toy.images[:5]
    expected = model.predict(images).probabilities
    np.testing.assert_array_equal(model.predict(images.numpy()).probabilities, expected)
    np.testing.assert_array_equal(model.predict(images[..., 0]).probabilities, expected)


def test_one_image_is_predicted_alone_as_in_a_batch(fitted: Fitted, toy: Dataset) -> None:
    together = fitted.model.predict(toy.images[:7]).probabilities
    alone = np.concatenate([fitted.model.predict(toy.images[row : row + 1]).probabilities for row in range(7)])
    np.testing.assert_allclose(alone, together, atol=1e-6)


@pytest.mark.parametrize(
    "images", [np.zeros((2, 9, 9), np.uint8), np.zeros((2, 8, 8, 3), np.uint8), torch.zeros(2, 8, 8)]
)
def test_images_the_model_cannot_take_are_refused(fitted: Fitted, images) -> None:
    with pytest.raises(
        UserError, match=r"the model takes uint8 images of shape \(n, (8, 8, 1|h, w, c)\), not (\(|torch)"
    ):
        fitted.model.predict(images)


def test_load_says_what_is_missing(tmp_path: Path, tiny: Config) -> None:
    with pytest.raises(UserError, match="there is no run"):
        cotrain.load(tmp_path / "absent")
    with pytest.raises(UserError, match=r"is not a run: it has no config\.json"):
        cotrain.load(tmp_path)


def test_a_damaged_model_file_is_named(fitted: Fitted, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("config.json", "split.json", "model.safetensors"):
        (copy / name).write_bytes((fitted.folder / name).read_bytes())
    content = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"model.safetensors is damaged: its content does not match its digest"):
        cotrain.load(copy)


def test_unlabelled_is_minus_one(tmp_path: Path, toy: Dataset, tiny: Config) -> None:
    images, labels = toy.images[toy.train].numpy(), toy.labels[toy.train].numpy().copy()
    labels[10:] = -1
    dataset = cotrain.from_arrays(images, labels)
    fitted = cotrain.fit(
        dataset, out=tmp_path / "run", config=tiny, settings={"data.labels": None, "data.test_share": 0}
    )
    assert (fitted.result["labels"], fitted.result["unlabelled"]) == (10, 80)
    assert fitted.result["test_error"] is None


def test_resume_with_another_split_is_refused(tmp_path: Path, toy: Dataset, tiny: Config) -> None:
    fitted = cotrain.fit(toy, out=tmp_path / "run", config=tiny)
    with pytest.raises(UserError, match="is not the data"):
        cotrain.fit(open_data("digits"), out=fitted.folder, resume=True)


def test_arrays_in_other_layouts_are_the_same_images(fitted: Fitted, toy: Dataset) -> None:
    images = toy.images[:4].numpy()
    mirrored = np.ascontiguousarray(images[:, :, ::-1])
    frozen = images.copy()
    frozen.flags.writeable = False
    expected = fitted.model.predict(images).probabilities
    np.testing.assert_array_equal(fitted.model.predict(mirrored[:, :, ::-1]).probabilities, expected)
    np.testing.assert_array_equal(fitted.model.predict(frozen).probabilities, expected)
    with pytest.raises(UserError, match="there are no images to predict"):
        fitted.model.predict(images[:0])


@pytest.mark.parametrize("start", [cotrain.fit, cotrain.compare, partial(study, "ablation")])
def test_an_unknown_preset_names_the_choices_and_writes_nothing(start: Callable, toy: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no preset 'cod'; choose one of: paper, code"):
        start(toy, out=tmp_path / "out", preset="cod")
    with pytest.raises(UserError, match="there is no preset 'cod'"):
        study("cost", out=tmp_path / "cost", preset="cod")
    assert list(tmp_path.iterdir()) == []
