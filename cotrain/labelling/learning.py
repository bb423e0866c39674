"""What the model learns while people label: predictions for all images, the error to expect, and what to ask next."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotrain.config import Config
from cotrain.config.defaults import PHOTOS, default_config
from cotrain.config.recipes import recipe_named
from cotrain.data import Dataset, Split
from cotrain.data.dataset import UNLABELLED
from cotrain.evaluation.outputs import head_logits
from cotrain.labelling.estimating import (
    EARLIER,
    ENOUGH_TO_ADVISE,
    TOO_EARLY,
    HeldOut,
    advice,
    audit_point,
    calibrated,
    earlier_advice,
    extended,
    held_out,
)
from cotrain.labelling.order import (
    IN_RANDOM_ORDER,
    Space,
    most_informative,
    representatives,
    shuffled_rows,
    space_of,
)
from cotrain.labelling.second_looks import disputed_labels, still_disputed, stranger_scores
from cotrain.labelling.snapshot import Disputed, Estimate, Known, Order, Point, Snapshot
from cotrain.networks import build_trunk
from cotrain.ops import ensemble_probabilities, entropy, js_divergence
from cotrain.training.experiment import Experiment, Prepared
from cotrain.training.loop import trained_net
from cotrain.types import UserError

__all__ = [
    "Disputed",
    "Estimate",
    "Known",
    "Order",
    "PageModel",
    "Point",
    "Snapshot",
    "interactive_config",
]

QUICK = {"steps": 40, "labelled": 32, "unlabelled": 64}  # at most
FASTER = 2  # times the learning rate, because there are fewer steps
UNFITTED = 1.5  # temperature of the probabilities until there are enough labels to fit one
CLUSTERED = 10  # first questions that stand for clusters
RANKED = 256
CPU = torch.device("cpu")  # heads on a bank are too small to gain from another device


def interactive_config(dataset: Dataset, changes: Mapping[str, Any]) -> Config:
    """The config of `cotrain fit` for this data; where that trains a whole network, the one for photographs instead.

    Training while people wait needs the features of a frozen trunk.
    """
    config = default_config(dataset, changes).changed(changes)
    if build_trunk(config, 2, dataset.shape) is not None:
        return config
    return recipe_named(PHOTOS).changed({"augment.flip": dataset.mirror})


def quick(config: Config, seed: int) -> Config:
    """The same heads and method, trained in a second or two."""
    usual = {"steps": config.optim.steps, "labelled": config.optim.labelled, "unlabelled": config.unlabelled}
    changes: dict[str, Any] = {f"optim.{name}": min(most, usual[name]) for name, most in QUICK.items()}
    if config.optim.steps > QUICK["steps"]:
        changes["optim.lr"] = FASTER * config.optim.lr
    changes["robust.false_alarms"] = 0.0  # people mark strangers themselves, and it takes a second
    return config.changed({**changes, "run.seed": seed})


@dataclass(frozen=True)
class TrainingSet:
    """The data of one training: only classes that have labels take part, and get the labels 0, 1, ... of a dataset."""

    dataset: Dataset
    split: Split
    numbers: NDArray[np.int64]  # of the classes on the page, by label
    columns: NDArray[np.int64]  # of the same classes in a snapshot
    labels: Mapping[int, int]  # row -> label

    @property
    def enough(self) -> bool:
        return len(self.numbers) >= 2


class PageModel:
    """The model behind the page. The same labels give the same snapshot, whatever was trained before."""

    def __init__(self, prepared: Prepared, seed: int = 0) -> None:
        """The labels and classes of the prepared data are not used."""
        dataset, config, bank = prepared.dataset, prepared.config, prepared.bank
        if bank is None:
            raise UserError(
                f"labelling needs a pretrained network whose trunk is frozen, but {config.model.backbone} has none; "
                "choose another model.backbone, such as lite0"
            )
        self.prepared, self.dataset, self.bank = prepared, dataset, bank
        self.config, self.seed = quick(config, seed), seed
        self.rule = config.run.ensemble
        self.rows = np.sort(np.concatenate([dataset.train, dataset.valid, dataset.test]))  # the readable images

    @cached_property
    def space(self) -> Space:
        """Where the training images are compared. The first question needs it; takes about a second."""
        return space_of(self.bank, self.dataset.train)

    def first(self, count: int, order: Order = "informative") -> list[int]:
        """Rows to ask for when there are no labels."""
        return self.next(None, Known({}, {}), frozenset(), count, order)

    def next(
        self,
        snapshot: Snapshot | None,
        known: Known,
        hidden: frozenset[int],
        count: int,
        order: Order = "informative",
    ) -> list[int]:
        """Rows of training images to ask for next, best first, none of them labelled, a stranger or in `hidden`."""
        asked = {*known.labels, *known.strangers, *hidden}
        if order == "random":
            shuffled = shuffled_rows(self.dataset.train, self.seed, IN_RANDOM_ORDER)
            return shuffled[~np.isin(shuffled, [*asked])][:count].tolist()
        if snapshot is None:
            return representatives(self.space, asked, count, self.seed)
        return most_informative(self.space, snapshot.doubt[self.space.rows], asked, count)

    def ranking(self, snapshot: Snapshot | None, known: Known) -> list[int]:
        """The rows to ask for next, best first: as many as people may answer before the next training.

        Without a model, the first ones stand for clusters, and the following ones are unlike all before them.
        """
        if snapshot is not None:
            return self.next(snapshot, known, known.set_aside, RANKED)
        first = self.next(None, known, known.set_aside, CLUSTERED)
        asked = {*known.labels, *known.strangers, *known.set_aside, *first}
        return [*first, *most_informative(self.space, None, asked, RANKED - len(first))]

    def train(self, known: Known, earlier: Snapshot | None = None) -> Snapshot | None:
        """None with fewer than two labelled classes. The estimate is carried over from `earlier`."""
        began = time.monotonic()
        data = self.training_set(known)
        if not data.enough:
            return None
        logits = self._trained(data.dataset, data.split, self.rows)
        found = earlier_advice(earlier, len(data.labels))
        return Snapshot(
            labels=len(data.labels),
            classes=tuple(known.classes),
            ensemble=self._of_all(ensemble_probabilities(logits, self.rule), data, known),
            temperature=earlier.temperature if earlier else UNFITTED,
            heads=self._votes(logits, data),
            doubt=self._doubt(logits),
            stranger_score=self._stranger_score(data, known),
            disputed=still_disputed(earlier, known),
            curve=extended(earlier.curve if earlier else (), audit_point(known)),
            paying=found.paying,
            advice=found.words,
            seconds=time.monotonic() - began,
        )

    def estimate(self, known: Known, snapshot: Snapshot) -> Iterator[Estimate | None]:
        """How good the model is that was trained on `known` as this snapshot: None after each training but the last.

        It takes six trainings, between which the caller may do something more urgent.
        """
        data = self.training_set(known)
        for checked in held_out(self._trained, data.dataset, data.split, self.rule, self.seed):
            if checked.rows:
                yield None
        changes = list[float]()
        for changed in self._changes(known, data, snapshot):
            yield None
            changes.append(changed)
        found = advice(len(data.labels), *changes) if changes else TOO_EARLY
        unlabelled = np.setdiff1d(data.split.unlabelled, data.split.labelled)
        fit = calibrated(checked, torch.from_numpy(snapshot.ensemble[np.ix_(unlabelled, data.columns)]), self.seed)
        yield Estimate(
            point=Point(len(data.labels), fit.error, fit.low, fit.high, "cross-validation") if fit else None,
            temperature=fit.temperature if fit else UNFITTED,
            disputed=disputes(data, checked),
            paying=found.paying,
            advice=found.words,
        )

    def _changes(self, known: Known, data: TrainingSet, snapshot: Snapshot) -> Iterator[float]:
        """The percentage of guesses that the last third of the labels changed, and that another seed changes."""
        labels = len(data.labels)
        before = self.training_set(known, round(EARLIER * labels))
        if labels < ENOUGH_TO_ADVISE or not before.enough:
            return
        rows = self.dataset.train
        guesses = snapshot.ensemble[rows].argmax(axis=1)
        for other, config in ((before, self.config), (data, quick(self.config, self.seed + 1))):
            logits = self._trained(other.dataset, other.split, rows, config)
            others = other.columns[ensemble_probabilities(logits, self.rule).argmax(dim=-1).numpy()]
            yield 100 * float((others != guesses).mean())

    def training_set(self, known: Known, first: int | None = None) -> TrainingSet:
        """What to train on: all labels of training images, or the `first` ones."""
        trainable = set(self.dataset.train.tolist())
        given = [(row, number) for row, number in known.labels.items() if row in trainable][:first]
        used = {number for _, number in given}
        columns = [(column, number) for column, number in enumerate(known.classes) if number in used]
        label_of = {number: label for label, (_, number) in enumerate(columns)}
        labels = {row: label_of[number] for row, number in sorted(given)}
        everything = torch.full_like(self.dataset.labels, UNLABELLED)
        everything[list(labels)] = torch.tensor([*labels.values()], dtype=everything.dtype)
        unlabelled = np.setdiff1d(self.dataset.train, np.fromiter(known.strangers, np.int64, len(known.strangers)))
        split = Split(
            name="labelling",
            source=None,
            fingerprint="",
            labelled=tuple(labels),
            unlabelled=tuple(unlabelled.tolist()),
            valid=(),
            test=(),
        )
        names = tuple(known.classes[number] for number in label_of)
        return TrainingSet(
            replace(self.dataset, labels=everything, classes=names),
            split,
            np.array([*label_of], np.int64),
            np.array([column for column, _ in columns], np.int64),
            labels,
        )

    def _trained(self, dataset: Dataset, split: Split, rows: NDArray[np.int64], config: Config | None = None) -> Tensor:
        """(H, n, C) logits for these rows."""
        experiment = Experiment(config or self.config, dataset, split, CPU, prepared=self.prepared)
        return head_logits(trained_net(experiment), experiment.inputs, rows)

    def _of_all(self, probabilities: Tensor, data: TrainingSet, known: Known) -> NDArray[np.float32]:
        """(n, C) for all rows of the dataset and all classes of the page."""
        found = np.zeros((len(self.dataset.images), len(known.classes)), np.float32)
        found[np.ix_(self.rows, data.columns)] = probabilities.numpy()
        return found

    def _votes(self, logits: Tensor, data: TrainingSet) -> NDArray[np.int64]:
        votes = np.full((len(logits), len(self.dataset.images)), -1, np.int64)
        votes[:, self.rows] = data.columns[logits.argmax(dim=-1).numpy()]
        return votes

    def _doubt(self, logits: Tensor) -> NDArray[np.float32]:
        """The entropy of the ensemble: the mean entropy of the heads plus their Jensen-Shannon divergence."""
        doubt = np.zeros(len(self.dataset.images), np.float32)
        doubt[self.rows] = (entropy(logits).mean(dim=0) + js_divergence(logits)).numpy()
        return doubt

    def _stranger_score(self, data: TrainingSet, known: Known) -> NDArray[np.float32]:
        places = self.space.places(data.labels), self.space.places(known.strangers)
        scores = np.zeros(len(self.dataset.images), np.float32)
        scores[self.space.rows] = stranger_scores(self.space.points, *places)
        return scores


def with_estimate(snapshot: Snapshot, known: Known, estimate: Estimate) -> Snapshot:
    """The snapshot of `known` with an estimate that may be of fewer labels and other classes."""
    return replace(
        snapshot,
        temperature=estimate.temperature,
        disputed=still_disputed(estimate, known),
        curve=extended(snapshot.curve, estimate.point),
        paying=estimate.paying,
        advice=estimate.advice,
    )


def disputes(data: TrainingSet, checked: HeldOut) -> tuple[Disputed, ...]:
    """The disputed labels, with the classes of the page."""
    return tuple(
        replace(one, label=int(data.numbers[one.label]), proposed=int(data.numbers[one.proposed]))
        for one in disputed_labels(checked)
    )
