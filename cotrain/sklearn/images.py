"""`CoTrainingImageClassifier`: what `cotrain fit` does with images, as a scikit-learn classifier."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from cotrain.config import data_settings
from cotrain.config.defaults import configured
from cotrain.data import from_arrays
from cotrain.data.workers import FILES_PER_TASK, Workers, worker_count
from cotrain.device import pick_device
from cotrain.inference.model import model_trained
from cotrain.progress import say
from cotrain.sklearn.comparison import trained_better
from cotrain.sklearn.estimator import split_of
from cotrain.sklearn.targets import changes_of, console_of, encoded, seed_of, threads
from cotrain.training.checks import check_trainable
from cotrain.training.experiment import Experiment, Prepared


class CoTrainingImageClassifier(ClassifierMixin, BaseEstimator):
    """Learns from a few labelled and many unlabelled images: heads on a pretrained network, or a network from scratch.

    `X` holds uint8 images (n, h, w) or (n, h, w, channels), or the paths of image files. In `y`, -1 marks an unlabelled
    image. Nothing but the features of a pretrained network is written to disk; they are kept in cotrain's cache.

    Parameters
    ----------
    method : str or None
        The training method, such as "mhct" or "fixmatch"; None: the default for these images.
    settings : dict or None
        Other settings by dotted keys, such as {"optim.steps": 300, "model.backbone": "wrn-10-1"}.
    compare : bool
        Compare with logistic regression on the features of the pretrained network, by cross-validation over the
        labelled images, if there are enough of them. If it is clearly better, it is used instead, with a warning. A
        network from scratch has no such features, and is not compared.
    random_state : int, RandomState instance or None
    n_jobs : int or None
        Threads; -1: one per core.
    verbose : int
        Whether to print what happens.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    model_ : cotrain.inference.model.Model
        The trained network, as `cotrain.load` returns it.
    used_ : str
        The name of the method, or "logistic_regression".
    comparison_ : dict or None
        What the cross-validation found; None: there was none.
    """

    def __init__(
        self,
        method: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        compare: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int | bool = 0,
    ) -> None:
        self.method = method
        self.settings = settings
        self.compare = compare
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        self.classes_, codes = encoded(self, y)
        check_consistent_length(X, y)
        changes = changes_of(self, seed_of(self.random_state))
        images = self._read(X, changes) if are_paths(X) else np.asarray(X)
        dataset = from_arrays(images, codes, classes=tuple(map(str, self.classes_.tolist())), name="X")
        config = configured(dataset, None, "paper", changes)
        prepared = Prepared(config, dataset, console=console_of(self.verbose))
        check_trainable(prepared)
        device = pick_device(config.run.device)
        with threads(self.n_jobs):
            self._train(Experiment(config, dataset, split_of(dataset), device, prepared=prepared))
        return self

    def _train(self, experiment: Experiment) -> None:
        config, split, console = experiment.config, experiment.split, console_of(self.verbose)
        say(console, f"{len(split.labelled):,} labelled of {len(split.unlabelled):,} images; {config.method.name}")
        trained = trained_better(experiment, console, compare=self.compare)
        self.used_, self.comparison_ = trained.used, trained.comparison
        self.model_ = model_trained(
            trained.net, trained.config, experiment.dataset, experiment.inputs, experiment.trunk
        )

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        size = (*self.model_.size, self.model_.channels)
        images = decoded([os.fspath(path) for path in X], size) if are_paths(X) else np.asarray(X)
        with threads(self.n_jobs):
            return self.model_.predict(images).probabilities.astype(np.float64)

    def predict(self, X: Any) -> NDArray:
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def _read(self, paths: Sequence[Any], changes: Mapping[str, Any]) -> NDArray[np.uint8]:
        settings = data_settings(None, changes)
        height, width = map(int, (settings.size or f"{settings.largest}x{settings.largest}").split("x"))
        return decoded([os.fspath(path) for path in paths], (height, width, 3))


def are_paths(X: Any) -> bool:
    return len(X) > 0 and isinstance(X[0], str | os.PathLike)


def decoded(paths: Sequence[str], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """(n, h, w, c) images. A file that cannot be read is an error: X and y must stay of one length."""
    batches = [paths[start : start + FILES_PER_TASK] for start in range(0, len(paths), FILES_PER_TASK)]
    images = []
    with Workers(worker_count(len(paths))) as workers:
        for batch, found in zip(batches, workers.decode(iter(batches), shape), strict=True):
            for path, error in zip(batch, found.errors, strict=True):
                if error is not None:
                    raise ValueError(f"cannot read {path}: {error}")
            images.append(found.images.copy())
    return np.concatenate(images)
