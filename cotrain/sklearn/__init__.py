"""Co-training as scikit-learn classifiers: a few labelled rows or images, and many with the label -1."""

from cotrain.sklearn.estimator import CoTrainingClassifier
from cotrain.sklearn.images import CoTrainingImageClassifier

__all__ = ["CoTrainingClassifier", "CoTrainingImageClassifier"]
