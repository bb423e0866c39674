"""`CoTrainingClassifier`: co-training on features as a scikit-learn classifier."""

import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from cotrain.config.defaults import configured
from cotrain.data import Dataset, Features, Split
from cotrain.data.columns import check_table, coded, column_of, features_of, is_table
from cotrain.data.feature_arrays import dataset_of
from cotrain.data.feature_table import numbered, standardised
from cotrain.data.inputs import FeatureInputs, rows_at_once
from cotrain.device import pick_device
from cotrain.ops import ensemble_probabilities, one_hot
from cotrain.progress import say
from cotrain.sklearn.comparison import trained_better
from cotrain.sklearn.targets import UNLABELLED, changes_of, console_of, encoded, seed_of, threads
from cotrain.sklearn.width import long_wait, reduction_of
from cotrain.training.checks import check_trainable
from cotrain.training.experiment import Experiment, Prepared
from cotrain.types import UserError


class CoTrainingClassifier(ClassifierMixin, BaseEstimator):
    """Learns from a few labelled and many unlabelled samples by Multi-Head Co-Training on views of their features.

    In `y`, -1 marks an unlabelled sample, also among strings, as in scikit-learn's `SelfTrainingClassifier`. `X` is an
    array, a memory map, a sparse matrix, or a DataFrame, whose columns of words and booleans are categories. Columns of
    numbers are standardised by all samples. A sparse matrix of more than 4,096 columns, such as TF-IDF, is first
    reduced to 50 dimensions by latent semantic analysis.

    Parameters
    ----------
    method : str or None
        The training method, such as "mhct" or "fixmatch"; None: the default of the recipe `features`.
    settings : dict or None
        Other settings by dotted keys, such as {"optim.steps": 300, "features.noise": 0.2}; `cotrain describe features`
        lists them.
    compare : bool
        Compare with logistic regression by cross-validation over the labelled samples, if there are enough of them. If
        it is clearly better, it is used instead, with a warning.
    random_state : int, RandomState instance or None
    n_jobs : int or None
        Threads; -1: one per core.
    verbose : int
        Whether to print what happens.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Only if all names of columns of X are strings.
    config_ : cotrain.Config
        All settings.
    reduction_ : sklearn.pipeline.Pipeline or None
        What reduced the columns of a wide sparse matrix.
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
        seed = seed_of(self.random_state)
        features = self._learned_features(X, seed)
        self.classes_, codes = encoded(self, y)
        check_consistent_length(X, y)
        dataset = dataset_of(features, codes, tuple(map(str, self.classes_.tolist())))
        self.config_ = configured(dataset, None, "paper", changes_of(self, seed))
        prepared = Prepared(self.config_, dataset)
        check_trainable(prepared)
        device = pick_device(self.config_.run.device)
        with threads(self.n_jobs):
            self._train(Experiment(self.config_, dataset, split_of(dataset), device, prepared=prepared))
        return self

    def _train(self, experiment: Experiment) -> None:
        config, split, console = experiment.config, experiment.split, console_of(self.verbose)
        unlabelled = len(split.unlabelled) - len(split.labelled)
        say(console, f"{len(split.labelled):,} labelled and {unlabelled:,} unlabelled samples; {config.method.name}")
        if wait := long_wait(experiment.given.shape[-1], config, compare=self.compare):
            warnings.warn(wait, UserWarning, stacklevel=3)
        trained = trained_better(experiment, console, compare=self.compare)
        self.used_, self.comparison_ = trained.used, trained.comparison
        inputs = experiment.inputs
        assert isinstance(inputs, FeatureInputs)
        self.columns_, self.mean_, self.std_ = inputs.features.columns, np.array(inputs.mean), np.array(inputs.std)
        net = trained.net.cpu().eval().requires_grad_(False)
        self.net_ = net.double()  # so that no probability depends on the batch

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        features = self._known_features(X)
        with threads(self.n_jobs):
            at_once = rows_at_once(features.shape[-1], self.net_)
            parts = np.array_split(np.arange(len(features)), -(-len(features) // at_once))
            return np.concatenate([self._probabilities(features, rows) for rows in parts])

    @torch.inference_mode()
    def _probabilities(self, features: Features, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        values = torch.from_numpy(standardised(features[rows], self.mean_, self.std_))
        logits = self.net_(one_hot(values, features.one_hot)[..., None, None])
        return ensemble_probabilities(logits, self.config_.run.ensemble).numpy()

    def predict(self, X: Any) -> NDArray:
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def _learned_features(self, X: Any, seed: int) -> Features:
        check_samples(X)
        self.reduction_ = None
        if has_categories(X):
            validate_data(self, X, skip_check_array=True)
            features = features_of(X, where="X")
            features.check_finite("X")
            return features
        values = validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32, np.float16], ensure_min_samples=2
        )
        features = Features(values, numbered(values.shape[1], getattr(self, "feature_names_in_", None)))
        features.check_finite("X")
        self.reduction_ = reduction_of(values, seed)
        if self.reduction_ is None:
            return features
        reduced = self.reduction_.transform(values)
        return Features(reduced, numbered(reduced.shape[1]))

    def _known_features(self, X: Any) -> Features:
        check_samples(X)
        if any(column.categories is not None for column in self.columns_) and is_table(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            features = coded(X, self.columns_, "X")
            features.check_finite("X")
            return features
        values = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32, np.float16], reset=False)
        features = Features(values, self.columns_ if self.reduction_ is None else numbered(values.shape[1]))
        features.check_finite("X")
        return features if self.reduction_ is None else Features(self.reduction_.transform(values), self.columns_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def check_samples(X: Any) -> None:
    if is_table(X) and isinstance(X, Mapping):
        raise UserError(f"X is a {type(X).__name__}; turn it into a DataFrame or an array of shape (samples, columns)")
    check_table(X, "X")


def has_categories(X: Any) -> bool:
    """Whether it is a DataFrame with a column of anything but numbers."""
    if not is_table(X):
        return False
    return any(column_of(X[:1], name).dtype.kind not in "iufc" for name in X.columns)


def split_of(dataset: Dataset) -> Split:
    """All samples, the labelled ones among the unlabelled ones as in the paper's protocol."""
    labels = dataset.labels.numpy()
    return Split(
        name=dataset.name,
        source=None,
        fingerprint="",
        labelled=tuple(np.flatnonzero(labels != UNLABELLED).tolist()),
        unlabelled=tuple(range(len(labels))),
        valid=(),
        test=(),
    )
