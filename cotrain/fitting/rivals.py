"""What else one would do with a table: a random forest on the labelled rows, and label spreading over all rows.

They are only compared with, by cross-validation: a run has no model of them to predict with.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.data import Split
from cotrain.data.dataset import UNLABELLED
from cotrain.runs.result import Compared
from cotrain.training.experiment import Experiment

FOREST: Final = "random_forest"
SPREADING: Final = "label_spreading"
MOST_ROWS = 20_000  # for label spreading: its exact search for neighbours would take longer than training
LEAST = 1e-6  # of a probability
CPU = torch.device("cpu")


def rivals_of(experiment: Experiment) -> dict[Compared, "Rival"]:
    if experiment.kind.table is None or not experiment.config.wants_baseline:
        return {}
    rivals: dict[Compared, Rival] = {FOREST: Forest(experiment)}
    if len(experiment.dataset.train) <= MOST_ROWS:
        rivals[SPREADING] = Spreading(experiment)
    return rivals


class Rival:
    """A classifier of scikit-learn: (split, rows) -> logits (1, n, C) of these rows."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.config, self.dataset = experiment, experiment.config, experiment.dataset

    def __call__(self, split: Split, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self.probabilities(split, rows).clip(LEAST)).log().float()[None]

    def probabilities(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        raise NotImplementedError

    def inputs(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.experiment.with_split(split).inputs.plain(rows, CPU).flatten(1).numpy()


class Forest(Rival):
    def probabilities(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        from sklearn.ensemble import RandomForestClassifier  # slow to import

        labelled = np.asarray(split.labelled)
        model = RandomForestClassifier(random_state=self.config.run.seed % 2**32)
        model.fit(self.inputs(split, labelled), self.dataset.labels[labelled].numpy())
        found = np.zeros((len(rows), len(self.dataset.classes)))
        found[:, model.classes_] = model.predict_proba(self.inputs(split, rows))
        return found


class Spreading(Rival):
    def probabilities(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        from sklearn.semi_supervised import LabelSpreading  # slow to import

        every = np.union1d(split.trained_on, rows)
        known = np.full(len(every), UNLABELLED)
        labelled = np.asarray(split.labelled)
        known[np.searchsorted(every, labelled)] = self.dataset.labels[labelled].numpy()
        model = LabelSpreading(kernel="knn", max_iter=100).fit(self.inputs(split, every), known)
        found = np.zeros((len(rows), len(self.dataset.classes)))
        found[:, model.classes_] = np.nan_to_num(model.label_distributions_[np.searchsorted(every, rows)])
        return found
