"""Is co-training better than logistic regression? By cross-validation over the labels, as in `cotrain fit`."""

from typing import Any

import numpy as np
import torch

from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.data.dataset import evenly
from cotrain.pipeline.crossvalidation import FEWEST, OURS, folds_of, mistakes, summary, trainers_of
from cotrain.runs.run import LOGISTIC

MOST = 2_000  # unlabelled samples
FOLDS = 3


def against_logistic(config: Config, dataset: Dataset, split: Split, device: torch.device) -> dict[str, Any] | None:
    """What `fit` writes to result.json about it; None if there are too few labels to tell.

    Of many unlabelled samples only some are used here, so that a fold takes no longer than its steps.
    """
    some = np.union1d(split.labelled, evenly(np.asarray(split.unlabelled), MOST))
    split = split.model_copy(update={"unlabelled": tuple(some.tolist())})
    folds = folds_of(split, dataset.labels, FOLDS, 1, config.run.seed)
    if sum(len(fold.held) for fold in folds) < FEWEST:
        return None
    trainers = {name: train for name, train in trainers_of(config, dataset, device).items() if name in (OURS, LOGISTIC)}
    found = {
        f"{name}/{number}": train(fold.split, fold.held).numpy()
        for number, fold in enumerate(folds)
        for name, train in trainers.items()
    }
    wrong = {name: mistakes(name, folds, found, dataset.labels, config.run.ensemble) for name in trainers}
    return summary(wrong, 1, len(folds))
