"""Is co-training better than logistic regression? By cross-validation over the labels, as in `cotrain fit`."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console

from cotrain.config import Config
from cotrain.data import Dataset, Split
from cotrain.data.dataset import evenly
from cotrain.fitting.baseline import logistic_config, logistic_net, uses_logistic
from cotrain.fitting.crossvalidation import FEWEST, OURS, folds_of, mistakes, summary, trainers_of
from cotrain.model import MultiHead
from cotrain.progress import say
from cotrain.runs.run import LOGISTIC
from cotrain.training.loop import trained_net

MOST = 2_000  # unlabelled samples
FOLDS = 3


@dataclass(frozen=True)
class Trained:
    net: MultiHead
    config: Config  # of this network
    used: str  # the method, or logistic regression
    comparison: dict[str, Any] | None


def trained_better(
    config: Config, dataset: Dataset, split: Split, device: torch.device, console: Console, *, compare: bool
) -> Trained:
    """A network trained by the method; logistic regression, with a warning, if comparing shows it clearly better."""
    found = against_logistic(config, dataset, split, device) if compare else None
    if found is not None:
        words = in_words(found, config)
        say(console, words)
        if found["against"]["word"] == "hurt":
            warnings.warn(f"{words}; it is used instead", UserWarning, stacklevel=4)  # the caller of `fit`
            return Trained(logistic_net(config, dataset, split), logistic_config(config), LOGISTIC, found)
    return Trained(trained_net(config, dataset, split, device), config, config.method.name, found)


def against_logistic(config: Config, dataset: Dataset, split: Split, device: torch.device) -> dict[str, Any] | None:
    """What `fit` writes to result.json about it; None without features, or with too few labels to tell.

    Of many unlabelled samples only some are used here, so that a fold takes no longer than its steps.
    """
    if not uses_logistic(config, dataset):
        return None
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


def in_words(summary: Mapping[str, Any], config: Config) -> str:
    word, errors = summary["against"]["word"], summary["errors"]
    logistic = f"logistic regression ({errors[LOGISTIC]['error']:.1f} % error)"
    ours = f"{config.method.name} ({errors[OURS]['error']:.1f} %)"
    how = f"in cross-validation over {summary['images']} labelled samples"
    if word == "no clear difference":
        return f"no clear difference between {logistic} and {ours} {how}"
    return f"{logistic} was clearly {'better' if word == 'hurt' else 'worse'} than {ours} {how}"
