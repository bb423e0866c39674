"""The error without test images: repeated stratified cross-validation over the labelled images.

In each fold, some labelled images lose their label and stay among the unlabelled ones. The method and its baselines
train without these labels and predict them. The final model uses all labels.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from cotrain.config import Config
from cotrain.data import Split
from cotrain.data.kinds import Kind
from cotrain.evaluation.outputs import error_interval, head_logits
from cotrain.evaluation.verdict import CHANCE, RESAMPLES, sign_test
from cotrain.fitting.baseline import baseline_config, logistic_net, uses_logistic
from cotrain.fitting.rivals import rivals_of
from cotrain.model import MultiHead
from cotrain.ops import ensemble_probabilities
from cotrain.progress import counted, say
from cotrain.runs.result import Against, Compared, CrossValidation, EstimatedError, Word
from cotrain.runs.run import LABELLED_ONLY, LOGISTIC, Run
from cotrain.runs.scores import Outputs
from cotrain.storage.reading import arrays_of
from cotrain.storage.rows import keep, kept
from cotrain.training.experiment import Experiment
from cotrain.training.loop import trained_net

OURS: Final = "method"
FOLDS = "cross_validation.folds"
FEWEST = 10  # labelled images to test on; with fewer, an error says nothing


@dataclass(frozen=True)
class Fold:
    repeat: int
    split: Split  # without the labels of `held`
    held: NDArray[np.int64]


def is_cross_validated(config: Config, kind: Kind) -> bool:
    """On features, training takes seconds, so that it can be repeated."""
    return config.run.baseline and config.run.repeats > 0 and kind.on_features


def folds_of(split: Split, labels: Tensor, folds: int, repeats: int, seed: int) -> list[Fold]:
    """Each repeat divides the labels of every class among the folds. A class with a single label keeps it."""
    labelled = np.asarray(split.labelled)
    classes = labels.numpy()[labelled]
    found = []
    for repeat in range(repeats):
        rng = np.random.default_rng((seed, repeat, 7))
        number = np.full(len(labelled), -1)
        for each in np.unique(classes):
            members = rng.permutation(np.flatnonzero(classes == each))
            if len(members) > 1:
                number[members] = (np.arange(len(members)) + rng.integers(folds)) % folds
        for fold in range(folds):
            held = labelled[number == fold]
            if len(held):
                kept = tuple(np.setdiff1d(labelled, held).tolist())
                changed = {"labelled": kept, "name": f"{split.name}-repeat{repeat}-fold{fold}"}
                found.append(Fold(repeat, split.model_copy(update=changed), held))
    return found


def cross_validate(run: Run, experiment: Experiment, console: Console) -> tuple[CrossValidation, Outputs] | None:
    """Errors of the method and its baselines over held-out labels; None if there are too few labels to tell.

    Also the method's outputs for each held-out label, from the first repeat.

    Finished folds are kept in the run's folder, so that an interrupted run repeats none of them.
    """
    config, dataset = run.config, experiment.dataset
    folds = folds_of(run.split, dataset.labels, config.run.folds, config.run.repeats, config.run.seed)
    if len({row for fold in folds for row in fold.held.tolist()}) < FEWEST:
        return None
    trainers: dict[Compared, Trainer] = {**trainers_of(experiment), **rivals_of(experiment)}
    path = run.folder / FOLDS
    found = _read(path, run.split.hash, console)
    for number, fold in counted(enumerate(folds), len(folds), "cross-validating: fold", console):
        for name, train in trainers.items():
            key, shape = f"{name}/{number}", (len(fold.held), len(dataset.classes))
            if key not in found or not _are_logits(found[key], shape):
                found[key] = train(fold.split, fold.held).numpy()
        save_folds(path, found, run.split.hash)
    if len({len(found[f"{OURS}/{number}"]) for number in range(len(folds))}) > 1:  # somebody else's
        path.unlink()
        return cross_validate(run, experiment, console)
    wrong = {name: mistakes(name, folds, found, dataset.labels, config.run.ensemble) for name in trainers}
    once = [number for number, fold in enumerate(folds) if fold.repeat == 0]
    rows = np.concatenate([folds[number].held for number in once])
    logits = np.concatenate([found[f"{OURS}/{number}"] for number in once], axis=1)
    outputs = Outputs(torch.from_numpy(logits), dataset.labels[rows], rows)
    return summary(wrong, config.run.repeats, len(folds)), outputs


Trainer = Callable[[Split, NDArray[np.int64]], Tensor]  # split, rows -> logits (H, n, C)


def trainers_of(experiment: Experiment) -> dict[Compared, Trainer]:
    """How the method and each baseline are trained on a fold: as the final models, with fewer labels.

    Only in this process, whatever the other ranks do.
    """

    def outputs(train: Callable[[Experiment], MultiHead], whole: Experiment) -> Trainer:
        def trained(split: Split, rows: NDArray[np.int64]) -> Tensor:
            fold = whole.with_split(split)
            return head_logits(train(fold), fold.inputs, rows)

        return trained

    alone, config = experiment.alone(), experiment.config
    trainers: dict[Compared, Trainer] = {OURS: outputs(trained_net, alone)}
    if config.method.views.any_unlabelled:
        trainers[LABELLED_ONLY] = outputs(trained_net, alone.with_config(baseline_config(config)))
    if uses_logistic(experiment):
        trainers[LOGISTIC] = outputs(logistic_net, alone)
    return trainers


def mistakes(
    name: str, folds: Sequence[Fold], found: Mapping[str, NDArray], labels: Tensor, rule: str
) -> dict[int, list[bool]]:
    """For each labelled row, whether it was misclassified in each repeat."""
    wrong: dict[int, list[bool]] = {}
    for number, fold in enumerate(folds):
        logits = torch.from_numpy(found[f"{name}/{number}"])
        predicted = ensemble_probabilities(logits, rule).argmax(dim=-1)
        for row, mistaken in zip(fold.held.tolist(), (predicted != labels[fold.held]).tolist(), strict=True):
            wrong.setdefault(row, []).append(mistaken)
    return wrong


def summary(wrong: Mapping[Compared, Mapping[int, Sequence[bool]]], repeats: int, folds: int) -> CrossValidation:
    """The errors, and whether a baseline is clearly better than the method."""
    rates = {name: np.array([np.mean(each) for each in rows.values()]) for name, rows in wrong.items()}
    baselines = [name for name in rates if name != OURS]
    best = min(baselines, key=lambda name: rates[name].mean(), default=None)
    against = None
    if best is not None:
        low, high, clear = paired_rates(rates[OURS], rates[best])
        difference = 100 * float((rates[OURS] - rates[best]).mean())
        word: Word = "no clear difference" if not clear else "helped" if difference < 0 else "hurt"
        against = Against(baseline=best, difference=difference, low=low, high=high, word=word)
    return CrossValidation(
        images=len(rates[OURS]),
        folds=folds // repeats,
        repeats=repeats,
        errors={name: estimate(rate) for name, rate in rates.items()},
        against=against,
    )


def estimate(rates: NDArray[np.float64]) -> EstimatedError:
    """The mean over images, and Wilson's interval for as many images: repeats do not make more of them."""
    mean, images = float(rates.mean()), len(rates)
    bounds = [error_interval(whole, images) for whole in (int(np.floor(mean * images)), int(np.ceil(mean * images)))]
    low, high = min(bounds[0][0], bounds[1][0]), max(bounds[0][1], bounds[1][1])
    return EstimatedError(error=100 * mean, low=low, high=high)


def paired_rates(ours: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float, bool]:
    """The 95 % bootstrap interval of the difference over images, and whether it is clear by a sign test too."""
    differences = ours - other
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(100 * differences[drawn].mean(axis=1), [0.025, 0.975])
    worse, better = int((differences > 0).sum()), int((differences < 0).sum())
    agrees = worse + better > 0 and sign_test(worse, better) < CHANCE
    return float(low), float(high), bool(agrees and low * high > 0)


def _read(path: Path, split: str, console: Console) -> dict[str, NDArray]:
    if not path.exists():
        return {}
    with suppress(ValueError):
        if (content := kept(path, split)) is not None:
            return arrays_of(content)
    say(console, f"{path} was damaged: cross-validating again")
    return {}


def _are_logits(array: NDArray, shape: tuple[int, int]) -> bool:
    """Of one or more heads, for so many images and classes. A run folder may be somebody else's."""
    heads, *rest = array.shape or (0,)
    return array.dtype == np.float32 and heads > 0 and tuple(rest) == shape and bool(np.isfinite(array).all())


def save_folds(path: Path, found: Mapping[str, NDArray], split: str) -> None:
    content = io.BytesIO()
    np.savez(content, **found)  # type: ignore[arg-type]
    keep(path, content.getvalue(), split)
