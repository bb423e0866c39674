"""scikit-learn's own checks of an estimator."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from cotrain.sklearn import CoTrainingClassifier

QUICK = {
    "optim.steps": 20,
    "optim.labelled": 32,
    "optim.unlabelled": 16,
    "optim.lr": 0.02,
    "model.hidden": 16,
    "method.rounds": 1,
}


def exceptions(estimator: Any) -> dict[str, str]:
    return {"check_classifiers_classes": "labels the two classes -1 and 1, and -1 means unlabelled"}


@pytest.mark.system
@parametrize_with_checks(
    [CoTrainingClassifier("mhct_graph", settings=QUICK, compare=False)], expected_failed_checks=exceptions
)
def test_checks(estimator: Any, check: Any) -> None:
    check(estimator)
