"""What `fit` finds out about a folder as it is: images of no class, doubtful labels, and how large the classes are."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cotrain.audit.outliers import (
    Belonging,
    ByHeads,
    ByNeighbours,
    are_too_many,
    by_heads,
    by_neighbours,
    share_of_strangers,
    smallest_rate,
    training_p_values,
    write_belonging,
)
from cotrain.audit.shares import Estimated, estimate_shares
from cotrain.audit.suspects import Suspect, suspects_of
from cotrain.data import Dataset
from cotrain.inference.model import Model
from cotrain.ops import ensemble_probabilities
from cotrain.runs.result import ClassShare, StrangerSummary, SuspectSummary
from cotrain.runs.run import DOES_NOT_BELONG, SUSPECT_LABELS, Run
from cotrain.runs.scores import Outputs
from cotrain.storage.cells import class_cell, csv_line, safe_path
from cotrain.storage.writing import write_pieces
from cotrain.training.experiment import Experiment
from cotrain.types import Unit

AT_ONCE = 8_192  # images whose logits are in memory
MANY = 0.2  # share of images of no class, or of disputed labels, from which on there is a warning
NAMED = 5  # classes that a warning names
STRANGERS = ("path", "row", "belongs", "class", "left_out")
SUSPECTS = ("path", "row", "label", "proposed", "probability_of_label", "probability_of_proposed", "disputed")


@dataclass(frozen=True)
class Strangers:
    """The unlabelled images and whether they belong to any class, the strangest first."""

    rows: NDArray[np.int64]
    p_values: NDArray[np.float64]
    predicted: NDArray[np.int64]  # classes
    belonging: Belonging
    held_out: bool  # whether the network was trained without the labels of the images that these are compared with

    @property
    def labels(self) -> int:
        return len(self.belonging.held_out)


@dataclass(frozen=True)
class Findings:
    strangers: StrangerSummary
    suspect_labels: SuspectSummary
    class_shares: list[ClassShare]
    warnings: list[str]


def findings(run: Run, experiment: Experiment, model: Model, held_out: Outputs | None) -> Findings:
    """Write the two lists and what `predict` needs, and return their summary.

    `held_out` are the outputs for labelled images of heads trained without their labels, if there are any.
    """
    dataset, chosen, rule = experiment.dataset, experiment.selection, run.config.run.ensemble
    found = strangers_of(run, experiment, model, held_out)
    write_belonging(run.belonging_path, found.belonging)
    predicted, left_out = found.predicted, np.isin(found.rows, chosen.left_out)
    _write(run.folder / DOES_NOT_BELONG, STRANGERS, _stranger_rows(found, left_out, dataset))

    known = held_out or _own_outputs(run, dataset, model)
    suspects = suspects_of(known, rule)
    _write(run.folder / SUSPECT_LABELS, SUSPECTS, _suspect_rows(suspects, dataset))
    usual = ~left_out & (found.p_values > smallest_rate(found.labels))
    classes = len(dataset.classes)
    shares = estimate_shares(known.labels.numpy(), _classes(known.logits, rule), predicted[usual], classes)
    estimated = share_of_strangers(found.p_values, found.labels)
    clear = bool(len(found.rows)) and are_too_many(found.p_values, found.labels)
    warnings = [
        *_of_strangers(estimated if clear else 0.0, dataset.unit),
        *many_disputed(suspects, len(known.rows)),
        *without_pseudo_labels(predicted, dataset),
    ]
    strangers = StrangerSummary(
        estimated_share=float(estimated),
        clear=clear,
        left_out=int(left_out.sum()),
        smallest_rate=smallest_rate(found.labels),
        held_out=found.held_out,
    )
    labels = SuspectSummary(
        listed=len(suspects),
        disputed=sum(one.disputed for one in suspects),
        distrusted=0 if (weights := chosen.used.weights) is None else int((weights < 0.5).sum()),
        held_out=known is held_out,
    )
    by_class = _shares(shares, dataset.classes, np.bincount(predicted, minlength=classes))
    return Findings(strangers, labels, by_class, warnings)


def strangers_of(run: Run, experiment: Experiment, model: Model, held_out: Outputs | None = None) -> Strangers:
    """By the neighbours if there is a bank, otherwise by the heads."""
    dataset, bank = experiment.dataset, experiment.kind.bank
    unlabelled = np.setdiff1d(run.split.unlabelled, run.split.labelled).astype(np.int64)
    belonging: Belonging
    if bank is not None:
        belonging, honest = by_neighbours(experiment.neighbours), True
    else:
        compared, honest = held_out or _own_outputs(run, dataset, model), bool(held_out or run.split.valid)
        belonging = by_heads(compared.logits)
    p_values, predicted = np.empty(len(unlabelled)), np.empty(len(unlabelled), np.int64)
    for start in range(0, len(unlabelled), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        logits = model.logits_of(dataset, unlabelled[some])
        predicted[some] = _classes(logits, run.config.run.ensemble)
        if isinstance(belonging, ByHeads):
            p_values[some] = belonging.p_values(np.empty((0, 0), np.float32), logits)
    if isinstance(belonging, ByNeighbours) and bank is not None:
        p_values = training_p_values(experiment.neighbours, belonging, bank, unlabelled)
    order = np.argsort(p_values, kind="stable")
    return Strangers(unlabelled[order], p_values[order], predicted[order], belonging, honest)


def _own_outputs(run: Run, dataset: Dataset, model: Model) -> Outputs:
    """Without cross-validation: of the validation images, or else of the labelled images that it was trained on."""
    rows = np.asarray(run.split.valid or run.split.labelled)
    return Outputs(model.logits_of(dataset, rows), dataset.labels[rows], rows)


def _classes(logits: Tensor, rule: str) -> NDArray[np.int64]:
    return ensemble_probabilities(logits, rule).argmax(dim=-1).numpy()


def _shares(shares: Estimated, classes: Sequence[str], counts: NDArray[np.int64]) -> list[ClassShare]:
    return [
        ClassShare(name=name, share=share, low=low, high=high, pseudo_labels=count)
        for name, share, low, high, count in zip(
            classes, *(each.tolist() for each in (shares.share, shares.low, shares.high, counts)), strict=True
        )
    ]


def _of_strangers(estimated: float, unit: Unit) -> Iterator[str]:
    if estimated >= MANY:
        yield (
            f"about {100 * estimated:.0f} % of the unlabelled {unit.many} look unlike every labelled one: look at the "
            f"first rows of {DOES_NOT_BELONG}"
        )


def many_disputed(suspects: Sequence[Suspect], labels: int) -> Iterator[str]:
    if (disputed := sum(one.disputed for one in suspects)) and disputed >= MANY * labels:
        yield (
            f"{disputed} of {labels} labels are disputed by the heads: they may be wrong, or the network cannot tell "
            f"these classes apart ({SUSPECT_LABELS})"
        )


def without_pseudo_labels(predicted: NDArray[np.int64], dataset: Dataset) -> Iterator[str]:
    absent = np.setdiff1d(np.arange(len(dataset.classes)), predicted)
    if len(absent) and len(predicted):
        names = ", ".join(dataset.classes[index] for index in absent[:NAMED])
        more = f" and {len(absent) - NAMED:,} more" if len(absent) > NAMED else ""
        what, it = ("the class", "it") if len(absent) == 1 else ("any of the classes", "them")
        unit = dataset.unit
        yield (
            f"no unlabelled {unit} gets {what} {names}{more}: label more {unit.many} of {it}, or check that there are "
            "any"
        )


def _stranger_rows(found: Strangers, left_out: NDArray[np.bool_], dataset: Dataset) -> Iterator[Sequence[object]]:
    for row, p_value, label, left in zip(found.rows.tolist(), found.p_values, found.predicted, left_out, strict=True):
        yield (_path(dataset, row), row, f"{p_value:.6f}", class_cell(dataset.classes[label]), "yes" if left else "no")


def _suspect_rows(suspects: Sequence[Suspect], dataset: Dataset) -> Iterator[Sequence[object]]:
    for one in suspects:
        names = (class_cell(dataset.classes[one.label]), class_cell(dataset.classes[one.proposed]))
        numbers = (f"{one.of_label:.6f}", f"{one.of_proposed:.6f}")
        yield (_path(dataset, one.row), one.row, *names, *numbers, "yes" if one.disputed else "no")


def _path(dataset: Dataset, row: int) -> str:
    return safe_path(dataset.paths[row]) if dataset.paths else ""


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    write_pieces(path, (csv_line(row).encode(errors="surrogateescape") for row in chain([columns], rows)))
