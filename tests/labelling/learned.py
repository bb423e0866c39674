"""A page model on made images of three classes, and a person who knows the answers."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from cotrain import Config, Dataset
from cotrain.labelling.learning import Disputed, Known, PageModel, Point, Snapshot, with_estimate
from cotrain.training.experiment import Prepared
from tests.trunk.tiny import CONFIG, small_data

CLASSES = {0: "red", 1: "green", 2: "blue"}  # by number on the page
LEARNS = CONFIG.changed(
    {"optim.steps": 20, "optim.labelled": 16, "optim.unlabelled": 16, "optim.lr": 0.5, "model.hidden": None}
)


def a_page_model(train: int = 90, test: int = 0, config: Config = LEARNS, seed: int = 0) -> PageModel:
    return PageModel(Prepared(config, small_data(train, 0, test)), seed)


def truth(dataset: Dataset, rows: Iterable[int]) -> dict[int, int]:
    labels = dataset.labels.numpy()
    return {int(row): int(labels[row]) for row in rows}


def answered(page_model: PageModel, rows: Iterable[int]) -> Known:
    """What a person who is always right says about these rows."""
    return Known(CLASSES, truth(page_model.dataset, rows))


def estimated(page_model: PageModel, known: Known, snapshot: Snapshot) -> Snapshot:
    """The snapshot of these labels with an estimate of its own."""
    *_, estimate = page_model.estimate(known, snapshot)
    assert estimate is not None
    return with_estimate(snapshot, known, estimate)


def a_snapshot(labels: int = 10, disputed: tuple[Disputed, ...] = (), curve: tuple[Point, ...] = ()) -> Snapshot:
    """Of six images, without any training."""
    return Snapshot(
        labels=labels,
        classes=tuple(CLASSES),
        ensemble=np.full((6, 3), 1 / 3, np.float32),
        temperature=1.0,
        heads=np.zeros((3, 6), np.int64),
        doubt=np.zeros(6, np.float32),
        stranger_score=np.zeros(6, np.float32),
        disputed=disputed,
        curve=curve,
        paying=None,
        advice="",
        seconds=0.0,
    )


def without_row(dataset: Dataset, row: int) -> Dataset:
    """The dataset as it is if the file of this row cannot be read."""
    return replace(dataset, train=np.setdiff1d(dataset.train, [row]))
