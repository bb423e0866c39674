"""The classifiers inside other people's programs."""

import io
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cotrain.sklearn import CoTrainingClassifier, CoTrainingImageClassifier
from tests.sklearn.test_estimator_checks import QUICK
from tests.trunk.tiny import known, small_data


def quick(**changes: Any) -> CoTrainingClassifier:
    return CoTrainingClassifier(**{"settings": QUICK, "compare": False, "random_state": 0, **changes})


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples, their classes, and what is known of these: five of each."""
    x, y = make_blobs(150, 5, centers=3, cluster_std=2.0, random_state=0)
    known = np.full(150, -1)
    for number in range(3):
        known[np.flatnonzero(y == number)[:5]] = number
    return x, y, known


def test_a_few_labels_and_many_unlabelled_samples(blobs: Any) -> None:
    x, y, known = blobs
    model = quick().fit(x, known)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.n_features_in_ == 5
    assert model.used_ == "mhct_graph"
    assert model.score(x, y) > 0.95
    assert np.array_equal(model.predict(x), quick().fit(x, known).predict(x))
    assert not np.array_equal(model.predict_proba(x), quick(random_state=1).fit(x, known).predict_proba(x))


@pytest.mark.parametrize("mark", [-1, "-1"])
def test_labels_can_be_strings(blobs: Any, mark: object) -> None:
    x, y, known = blobs
    names = np.array(["red", "green", "blue"], object)
    words = np.array([mark if number < 0 else names[number] for number in known], object)
    model = quick().fit(x, words)
    assert model.classes_.tolist() == ["blue", "green", "red"]
    assert model.score(x, names[y]) > 0.95
    assert np.array_equal(model.predict(x), quick().fit(x, words.astype(str)).predict(x))


@pytest.mark.parametrize("method", ["fixmatch", "supervised", "vat"])
def test_other_methods(blobs: Any, method: str) -> None:
    settings = {key: value for key, value in QUICK.items() if not key.startswith("method")}
    model = quick(method=method, settings=settings).fit(*blobs[::2])
    assert model.used_ == method
    assert model.score(*blobs[:2]) > 0.8


def test_a_sparse_matrix_and_a_memory_map_give_what_the_array_gives(blobs: Any, tmp_path: Path) -> None:
    x, _, known = blobs
    x = np.where(np.arange(5) < 2, x.round(), 0).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    dense = quick().fit(x, known).predict_proba(x)
    assert np.array_equal(dense, quick().fit(sparse.csr_matrix(x), known).predict_proba(sparse.coo_array(x)))
    assert np.array_equal(dense, quick().fit(np.load(tmp_path / "x.npy", mmap_mode="r"), known).predict_proba(x))


def test_words_of_a_data_frame_are_categories() -> None:
    """The class is the word, which as a number would say nothing; a word that training did not see is no word."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, 200)
    frame = pd.DataFrame({"size": rng.normal(size=200), "colour": np.array(list("abcd"))[codes], "new": codes > 1})
    y = np.where(np.arange(200) < 40, codes % 2, -1)
    model = quick().fit(frame, y)
    assert model.feature_names_in_.tolist() == ["size", "colour", "new"]
    assert model.score(frame, codes % 2) > 0.95
    unseen = frame.assign(colour="z")
    assert np.isfinite(model.predict_proba(unseen)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["colour", "size", "new"]])


def test_inside_scikit_learn(blobs: Any) -> None:
    x, y, known = blobs
    piped = make_pipeline(StandardScaler(), quick()).fit(x, known)
    assert piped.score(x, y) > 0.95
    search = GridSearchCV(clone(quick()), {"settings": [QUICK, {**QUICK, "optim.lr": 1e-9}]}, cv=2).fit(x, y)
    assert search.best_params_["settings"] == QUICK
    calibrated = CalibratedClassifierCV(quick(), cv=2).fit(x, y)
    assert np.allclose(calibrated.predict_proba(x).sum(axis=1), 1)
    file = io.BytesIO()
    model = quick().fit(x, known)
    joblib.dump(model, file)
    file.seek(0)
    assert np.array_equal(joblib.load(file).predict_proba(x), model.predict_proba(x))


def test_threads_are_given_back(blobs: Any) -> None:
    before = torch.get_num_threads()
    quick(n_jobs=2).fit(*blobs[::2])
    assert torch.get_num_threads() == before


def test_it_is_quiet_unless_asked(blobs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    quick(compare=True).fit(*blobs[::2])
    assert capsys.readouterr().out == ""
    model = quick(compare=True, verbose=1).fit(*blobs[::2])
    assert "in cross-validation over 15 labelled samples" in " ".join(capsys.readouterr().out.split())
    assert model.comparison_["images"] == 15


def test_logistic_regression_is_used_if_it_is_clearly_better() -> None:
    """A network that learns nothing, against two classes that a line separates."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 4)), np.arange(80) % 2
    x[:, 0] += 6 * y
    with pytest.warns(UserWarning, match=r"logistic regression .* was clearly better than mhct_graph"):
        model = quick(compare=True, settings=QUICK | {"optim.lr": 1e-9}).fit(x, y)
    assert model.used_ == "logistic_regression"
    assert model.score(x, y) == 1


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((4, 2)), [-1, -1, -1, -1], "every sample in y is unlabelled"),
        (np.zeros((4, 2)), [1, 1, -1, -1], "only one class: np.int64"),
        (np.array([[1, 2], [3, np.nan], [1, 1]]), [0, 1, -1], "Input X contains NaN"),
        (np.array([[1, 2], [3, np.inf], [1, 1]]), [0, 1, -1], "Input X contains infinity"),
        (np.zeros((3, 2)), [0, 1], "inconsistent numbers of samples"),
        (np.zeros((3, 2)), [0.5, 1.5, 2.5], "Unknown label type"),
        (np.zeros((3, 2)), [0.0, 1.0, np.nan], "contains NaN; mark unlabelled samples by -1"),
        (np.zeros((3, 2)), np.array(["a", "b", None], object), "contains NaN; mark unlabelled samples by -1"),
        (pd.DataFrame({"when": pd.to_datetime(["2020-01-01"] * 3), "a": 1.0}), [0, 1, -1], "'when' holds dates"),
        (pd.DataFrame({"a": ["x", "y", "z"], "b": [1, None, 2.0]}), [0, 1, -1], "'b' is empty .NaN. in row 1"),
        (pd.DataFrame({"text": [f"word {n}" for n in range(200)]}), [0, 1] * 100, "text or names"),
    ],
)
def test_bad_input_is_a_value_error(x: Any, y: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        quick().fit(x, y)


def test_other_columns_at_predict_time(blobs: Any) -> None:
    model = quick().fit(*blobs[::2])
    with pytest.raises(ValueError, match="X has 3 features, but CoTrainingClassifier is expecting 5 features"):
        model.predict(blobs[0][:, :3])


def test_so_many_classes_that_a_step_would_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotrain.training.checks.free_memory", lambda: 0.1)
    with (
        pytest.warns(UserWarning, match="number of unique classes is greater than 50%"),
        pytest.raises(ValueError, match=r"100,000 classes, so that a step needs .* of memory"),
    ):
        quick().fit(np.zeros((100_000, 2), np.float32), np.arange(100_000))


def test_a_constant_column_changes_nothing(blobs: Any) -> None:
    x, y, known = blobs
    assert quick().fit(np.c_[x, np.full(len(x), 1e9)], known).score(np.c_[x, np.full(len(x), 1e9)], y) > 0.95


@pytest.fixture(scope="module")
def pictures() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    images = rng.integers(0, 60, (60, 8, 8)).astype(np.uint8)
    images[y == 0, :4] += 150
    images[y == 1, 4:] += 150
    return images, np.where(np.arange(60) < 20, y, -1)


def test_images_as_arrays_and_as_files(pictures: Any, tmp_path: Path) -> None:
    images, y = pictures
    settings = {"optim.steps": 20, "optim.labelled": 16, "optim.unlabelled": 16, "data.size": 8}
    own = {**settings, "model.backbone": "wrn-10-1", "optim.lr": 0.1, "model.bn_momentum": 0.5}
    model = CoTrainingImageClassifier(settings=own, random_state=0).fit(images, y)
    assert model.score(images[:20], y[:20]) > 0.9
    assert model.predict_proba(images).shape == (60, 2)
    paths = []
    for number, image in enumerate(images):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(np.stack([image] * 3, axis=-1)).save(paths[-1])
    of_files = CoTrainingImageClassifier(settings=own, random_state=0).fit(paths, y)
    assert of_files.score(paths[:20], y[:20]) > 0.9
    paths[3].write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot read .*3\.png"):
        of_files.predict(paths)


def test_images_are_compared_with_logistic_regression_on_the_same_features() -> None:
    """Heads that learn nothing, on the features of a frozen network."""
    data = small_data(train=60, valid=0, test=0)
    images, y = data.images.numpy(), np.where(np.arange(60) < 45, data.labels.numpy(), -1)
    settings = {key: value for key, value in QUICK.items() if key != "model.hidden"}
    changed = {**settings, "model.backbone": "tiny", "run.runtime": "torch", "data.size": 16, "optim.lr": 1e-9}
    model = CoTrainingImageClassifier("mhct_graph", settings=changed, random_state=0)
    with known(), pytest.warns(UserWarning, match=r"logistic regression .* was clearly better than mhct_graph"):
        model.fit(images, y)
    assert model.used_ == "logistic_regression"
    assert model.score(images, data.labels.numpy()) > 0.9
    with known():
        assert (
            CoTrainingImageClassifier("mhct_graph", settings=changed, compare=False).fit(images, y).comparison_ is None
        )
