"""Confusions and classes, against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from cotrain.evaluation import confusion


@pytest.fixture
def said() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    predicted = np.where(rng.random(300) < 0.7, labels, rng.integers(0, 4, 300))
    return torch.from_numpy(predicted), torch.from_numpy(labels)


def test_confusions_and_classes(said) -> None:
    first, labels = said
    confused = confusion.confusion(first, labels, 5)
    np.testing.assert_array_equal(confused, confusion_matrix(labels, first, labels=range(5)))
    found = confusion.by_class(confused)
    np.testing.assert_allclose(found.recall[:4], 100 * recall_score(labels, first, average=None))
    np.testing.assert_allclose(found.precision[:4], 100 * precision_score(labels, first, average=None))
    np.testing.assert_allclose(found.error[:4], 100 - found.recall[:4])
    assert (found.images[4], found.predicted[4]) == (0, 0)
    assert np.isnan([found.recall[4], found.precision[4], found.error[4]]).all()


def test_worst_confusions_leave_out_what_is_right_and_what_never_happens() -> None:
    confused = np.array([[9, 1, 0], [4, 9, 0], [0, 2, 9]])
    assert confusion.worst_confusions(confused) == [
        confusion.Confusion(1, 0, 4), confusion.Confusion(2, 1, 2), confusion.Confusion(0, 1, 1)
    ]  # fmt: skip
    assert confusion.worst_confusions(np.diag([3, 3])) == []
