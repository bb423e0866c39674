"""Samples that are many, wide or extreme, and arguments that are no arguments: bounded memory, or one clear line."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from cotrain import UserError
from cotrain.data.inputs import FEATURES_AT_ONCE
from cotrain.ops import widest
from cotrain.sklearn import CoTrainingClassifier, CoTrainingImageClassifier
from tests.sklearn.test_estimator_checks import QUICK

RNG = np.random.default_rng(0)
Y = np.arange(60) % 2
X = RNG.normal(size=(60, 3)) + 2 * Y[:, None]
KNOWN = np.where(np.arange(60) < 30, Y, -1)


def quick(**changes: Any) -> CoTrainingClassifier:
    return CoTrainingClassifier(**{"settings": {**QUICK, "optim.steps": 3}, "compare": False, **changes})


def largest_batch(model: CoTrainingClassifier, samples: Any) -> int:
    sizes: list[int] = []
    hook = model.net_.register_forward_pre_hook(lambda net, inputs: sizes.append(len(inputs[0])))
    assert len(model.predict_proba(samples)) == len(samples)
    hook.remove()
    return max(sizes)


def test_memory_of_predicting_is_bounded_by_hidden_layers_too() -> None:
    model = quick(settings={**QUICK, "optim.steps": 1, "model.hidden": 256}).fit(X, KNOWN)
    assert widest(model.net_) == 256
    assert largest_batch(model, np.zeros((20_000, 3))) * 256 <= FEATURES_AT_ONCE


def test_memory_of_predicting_is_bounded_by_categories_too() -> None:
    words = pd.DataFrame({"a": [f"word {number % 90}" for number in range(180)]})
    model = quick().fit(words, np.arange(180) % 2)
    many = pd.concat([words] * 200)
    assert largest_batch(model, many) * 90 <= FEATURES_AT_ONCE


def wide(labels: np.ndarray, columns: int = 6_000) -> sparse.csr_array:
    """Texts of 20 words. Each class has its own half of the words that it often uses."""
    rng = np.random.default_rng(1)
    often = rng.integers(0, 50, (len(labels), 20)) + 50 * labels[:, None]
    words = np.where(rng.random(often.shape) < 0.5, often, rng.integers(0, columns, often.shape))
    rows = np.repeat(np.arange(len(labels)), 20)
    return sparse.csr_array((np.ones(rows.size), (rows, words.ravel())), shape=(len(labels), columns))


def test_a_wide_sparse_matrix_is_reduced() -> None:
    labels = np.arange(200) % 2
    texts, known = wide(labels), np.where(np.arange(200) < 40, labels, -1)
    model = quick(settings=QUICK, random_state=0).fit(texts, known)
    assert model.n_features_in_ == 6_000
    assert len(model.columns_) == 50, "time and memory of training no longer grow with the words"
    assert model.score(texts, labels) > 0.9
    assert np.allclose(model.predict_proba(texts), model.predict_proba(texts.toarray()))
    again = quick(settings=QUICK, random_state=0).fit(texts, known)
    assert np.array_equal(model.predict_proba(texts), again.predict_proba(texts))
    with pytest.raises(ValueError, match="6000 features"):
        model.predict(texts[:, :50])
    assert model.fit(X, KNOWN).reduction_ is None


def test_the_time_of_wide_arrays_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotrain.sklearn.width.LONG", 0.1)
    with pytest.warns(UserWarning, match=r"5,000 columns.* minutes.*PCA"):
        quick().fit(RNG.normal(size=(40, 5_000)), KNOWN[:40])


@pytest.mark.parametrize("value", [1e39, -1e160, 1.7e308])
@pytest.mark.parametrize("shape", [np.asarray, sparse.csr_array, pd.DataFrame], ids=["array", "sparse", "frame"])
def test_a_value_that_no_float32_holds_is_refused(value: float, shape: Any) -> None:
    extreme = X.copy()
    extreme[7, 1] = value
    with pytest.raises(UserError, match=r"column '1' is too large .* in row 7"):
        quick().fit(shape(extreme), KNOWN)
    with pytest.raises(UserError, match=r"column '1' is too large .* in row 7"):
        quick().fit(shape(X), KNOWN).predict_proba(shape(extreme))


def test_every_other_value_gets_probabilities() -> None:
    """Also where the column hardly varies, so that the value is more standard deviations away than a float32 holds."""
    narrow = np.c_[X, 1e-200 * X[:, 0]]
    extreme = np.vstack([narrow[:2], np.full(4, 3e38), np.full(4, -3e38)])
    model = quick().fit(np.vstack([narrow, narrow]), np.r_[KNOWN, KNOWN])
    assert np.allclose(model.predict_proba(extreme).sum(axis=1), 1)


class Lazy:
    """As a LazyFrame of polars."""

    columns = ("a", "b")

    def __getitem__(self, name: str) -> Any:
        raise TypeError("not subscriptable")

    def collect(self) -> None: ...


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (pd.DataFrame(X, columns=["a", "b", "a"]), "several columns named 'a'"),
        (pd.DataFrame({"a": ["x", "y"] * 30, "b": 1.0}).set_axis(["a", "a"], axis=1), "several columns named 'a'"),
        (Lazy(), "Lazy.*collect"),
        ({"a": X[:, 0]}, "dict"),
    ],
    ids=["numbers", "words", "lazy", "dict"],
)
def test_what_is_no_table_is_one_line(samples: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        quick().fit(samples, KNOWN)
    with pytest.raises(UserError, match=words):
        quick().fit(X, KNOWN).predict(samples)


@pytest.mark.parametrize("kind", [CoTrainingClassifier, CoTrainingImageClassifier])
@pytest.mark.parametrize(
    "changes",
    [{"n_jobs": 1.5}, {"n_jobs": "2"}, {"n_jobs": 0}, {"settings": "optim.steps=3"}, {"settings": {1: 2}}],
    ids=str,
)
def test_arguments_of_another_type_are_one_line(kind: Any, changes: dict[str, Any]) -> None:
    samples = X if kind is CoTrainingClassifier else RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    (name,) = changes
    with pytest.raises(UserError, match=name):
        kind(compare=False, **changes).fit(samples, KNOWN)


def test_more_jobs_than_cores_are_one_per_core() -> None:
    """OpenMP ends the process if so many threads do not fit in memory."""
    seen: list[int] = []
    model = quick(n_jobs=10**9).fit(X, KNOWN)
    hook = model.net_.register_forward_pre_hook(lambda net, inputs: seen.append(torch.get_num_threads()))
    model.predict(X)
    hook.remove()
    assert 1 <= seen[0] < 10_000
