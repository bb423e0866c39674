"""Logistic regression as a network, against scikit-learn's own predictions."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from cotrain.model import MultiHead, Output
from cotrain.training.logistic import STRENGTHS, fit_logistic, rotated


def a_classifier(features: int, classes: int) -> MultiHead:
    return MultiHead(torch.nn.Flatten(), lambda: Output(features, classes, lambda _: None, 0.0), 1, classes=classes)


@pytest.mark.parametrize(("images", "features", "classes"), [(24, 50, 3), (80, 10, 3), (20, 50, 2)])
def test_it_predicts_what_scikit_learn_does_with_the_same_strength(images: int, features: int, classes: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(images) % classes
    points = (rng.standard_normal((images, features)) + 1.5 * np.eye(features)[labels]).astype(np.float32)
    net = a_classifier(features, classes)
    strength = fit_logistic(net, points, labels, seed=0)
    assert strength in STRENGTHS
    theirs = LogisticRegression(C=strength, max_iter=2000, tol=1e-8).fit(points, labels)
    ours = net(torch.from_numpy(points)[:, :, None, None])[0].softmax(-1).detach().numpy()
    assert np.abs(ours - theirs.predict_proba(points)).max() < 0.02
    assert (ours.argmax(1) == theirs.predict(points)).all()


def test_one_label_per_class_is_enough() -> None:
    net = a_classifier(6, 3)
    fit_logistic(net, np.eye(6, dtype=np.float32)[:3], np.arange(3), seed=0)
    assert (net(torch.eye(6)[:3, :, None, None])[0].argmax(-1) == torch.arange(3)).all()


def test_rotating_loses_nothing() -> None:
    points = np.random.default_rng(1).standard_normal((5, 40))
    reduced, directions = rotated(points)
    assert reduced.shape == (5, 5)
    assert np.allclose(reduced @ directions, points)


@pytest.mark.parametrize("labels", [[0, 2, 3], [0, 3]])
def test_a_class_without_labels_is_never_predicted(labels: list[int]) -> None:
    net = a_classifier(6, 4)
    fit_logistic(net, np.eye(6, dtype=np.float32)[: len(labels)], np.array(labels), seed=0)
    probabilities = net(torch.eye(6)[:, :, None, None])[0].softmax(-1).detach()
    assert probabilities[:, 1].max() == 0
    assert (probabilities[: len(labels)].argmax(-1) == torch.tensor(labels)).all()
