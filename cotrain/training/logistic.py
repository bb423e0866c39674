"""Logistic regression on the features of the labelled images: what a user of a pretrained network would do instead."""

import numpy as np
import torch
from numpy.typing import NDArray

from cotrain.model import MultiHead, Output

STRENGTHS = np.logspace(-4, 1, 6)  # C, the inverse of the regularisation
FOLDS = 3
ITERATIONS = 300
IMPOSSIBLE = -1e4  # logit
DEFAULT = 0.01  # C when the classes have too few labels to choose it


def fit_logistic(net: MultiHead, features: NDArray[np.float32], labels: NDArray[np.int64], seed: int) -> float:
    """Set the linear classifier of a network with one head by these (standardised) features. Returns C.

    C is chosen by cross-validation over the given labels, by their log-likelihood. A class without labels is never
    predicted.
    """
    from sklearn.linear_model import LogisticRegression  # slow to import
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    reduced, directions = rotated(features.astype(np.float64))
    folds = min(FOLDS, int(np.bincount(labels)[np.unique(labels)].min()))
    model = LogisticRegression(C=DEFAULT, max_iter=ITERATIONS, tol=1e-3)
    if folds > 1:
        splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
        found = GridSearchCV(model, {"C": STRENGTHS}, cv=splits, scoring="neg_log_loss").fit(reduced, labels)
        model = found.best_estimator_
    else:
        model = model.fit(reduced, labels)
    weight, bias = model.coef_ @ directions, model.intercept_
    if len(weight) == 1:  # two classes share one row
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    (classifier,) = (module for module in net.modules() if isinstance(module, Output))
    with torch.no_grad():
        classifier.fc.weight.zero_()
        classifier.fc.bias.fill_(IMPOSSIBLE)
        classifier.fc.weight[model.classes_] = torch.from_numpy(weight).float()
        classifier.fc.bias[model.classes_] = torch.from_numpy(bias).float()
    return float(model.C)


def rotated(features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The features in as many dimensions as there are images, and the directions of these.

    The L2-regularised solution lies in the span of the images, so nothing is lost, and the fit is faster.
    """
    if features.shape[0] >= features.shape[1]:
        return features, np.eye(features.shape[1])
    _, _, directions = np.linalg.svd(features, full_matrices=False)
    return features @ directions.T, directions
