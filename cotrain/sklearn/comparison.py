"""Is co-training better than logistic regression? By cross-validation over the labels, as in `cotrain fit`."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from cotrain.config import Config
from cotrain.data.kinds import evenly
from cotrain.fitting.baseline import logistic_config, logistic_net, uses_logistic
from cotrain.fitting.crossvalidation import FEWEST, OURS, folds_of, mistakes, summary, trainers_of
from cotrain.model import MultiHead
from cotrain.progress import say
from cotrain.runs.result import Compared, CrossValidation, Word
from cotrain.runs.run import LOGISTIC
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net

MOST = 2_000  # unlabelled samples
FOLDS = 3


@dataclass(frozen=True)
class Trained:
    net: MultiHead
    config: Config  # of this network
    used: str  # the method, or logistic regression
    comparison: dict[str, Any] | None


def trained_better(experiment: Experiment, console: Console, *, compare: bool) -> Trained:
    """A network trained by the method; logistic regression, with a warning, if comparing shows it clearly better."""
    config, found = experiment.config, against_logistic(experiment) if compare else None
    if found is not None:
        assert found.against is not None
        words = in_words(found, found.against.word, config)
        say(console, words)
        if found.against.word == "hurt":
            warnings.warn(f"{words}; it is used instead", UserWarning, stacklevel=4)  # the caller of `fit`
            return Trained(logistic_net(experiment), logistic_config(config), LOGISTIC, found.model_dump())
    comparison = None if found is None else found.model_dump()
    return Trained(trained_net(experiment), config, config.method.name, comparison)


def against_logistic(experiment: Experiment) -> CrossValidation | None:
    """As `fit` does it; None without features, or with too few labels to tell.

    Of many unlabelled samples only some are used here, so that a fold takes no longer than its steps.
    """
    if not uses_logistic(experiment):
        return None
    config, labels, split = experiment.config, experiment.dataset.labels, experiment.split
    some = np.union1d(split.labelled, evenly(np.asarray(split.unlabelled), MOST))
    split = split.model_copy(update={"unlabelled": tuple(some.tolist())})
    folds = folds_of(split, labels, FOLDS, 1, config.run.seed)
    if sum(len(fold.held) for fold in folds) < FEWEST:
        return None
    trainers = {name: train for name, train in trainers_of(experiment).items() if name in (OURS, LOGISTIC)}
    found = {
        f"{name}/{number}": train(fold.split, fold.held).numpy()
        for number, fold in enumerate(folds)
        for name, train in trainers.items()
    }
    wrong: dict[Compared, dict[int, list[bool]]] = {
        name: mistakes(name, folds, found, labels, config.run.ensemble) for name in trainers
    }
    return summary(wrong, 1, len(folds))


def in_words(checked: CrossValidation, word: Word, config: Config) -> str:
    logistic = f"logistic regression ({checked.errors[LOGISTIC].error:.1f} % error)"
    ours = f"{config.method.name} ({checked.errors[OURS].error:.1f} %)"
    how = f"in cross-validation over {checked.images} labelled samples"
    if word == "no clear difference":
        return f"no clear difference between {logistic} and {ours} {how}"
    return f"{logistic} was clearly {'better' if word == 'hurt' else 'worse'} than {ours} {how}"
