"""Splits: which rows are labelled, unlabelled, validation and test. Drawn once from a seed and stored in the run."""

import hashlib
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from cotrain.data.dataset import UNLABELLED, Dataset, check_known
from cotrain.data.settings import DataSettings
from cotrain.storage.reading import first_problem, read_json
from cotrain.types import Settings, UserError

Row = Annotated[int, Field(ge=0, lt=2**63)]
HOW_TO_LABEL = "put labelled images in one folder per class, or list paths and labels in labels.csv or --labels FILE"


class Split(Settings):
    """Rows of one dataset. `source` is where it was, `fingerprint` identifies its content."""

    name: str
    source: str | None  # None: arrays
    fingerprint: str
    labelled: tuple[Row, ...]
    unlabelled: tuple[Row, ...]
    valid: tuple[Row, ...]
    test: tuple[Row, ...]

    @property
    def hash(self) -> str:
        """A hash of the content only: a split does not change when its data move."""
        content = self.model_dump_json(exclude={"name", "source"})
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @property
    def trained_on(self) -> NDArray[np.int64]:
        return np.union1d(self.labelled, self.unlabelled).astype(np.int64)

    def check_fits(self, dataset: Dataset, what: str) -> None:
        if dataset.fingerprint != self.fingerprint:
            raise UserError(
                f"{dataset.source or dataset.name} is not the data {what} was made from: its content differs "
                f"(fingerprint {dataset.fingerprint}, not {self.fingerprint})"
            )

    def check_usable(self, dataset: Dataset) -> None:
        """Refuse impossible rows: a split file may have been edited."""
        held_out = np.array([*self.valid, *self.test], np.int64)
        rows = np.union1d(self.trained_on, held_out)
        if not self.labelled or not self.unlabelled:
            raise UserError(f"split {self.name} has no labelled or no unlabelled {dataset.unit.many}")
        if rows[0] < 0 or rows[-1] >= len(dataset.images):
            raise UserError(f"split {self.name} has rows outside {dataset.name} (0 to {len(dataset.images) - 1})")
        named = np.array([*self.labelled, *held_out], np.int64)
        for row in named[dataset.labels.numpy()[named] == UNLABELLED][:1]:
            raise UserError(f"split {self.name} uses the label of row {row}, which has none")
        for row in np.intersect1d(self.trained_on, held_out)[:1]:
            raise UserError(f"split {self.name} both trains and tests on row {row}")


def draw_split(dataset: Dataset, settings: DataSettings, seed: int) -> Split:
    """Keep the labels of `settings.labels` training images (None: of all labelled ones); the rest become unlabelled.

    As in the paper's protocol, the unlabelled images include the labelled ones unless `include_labelled` is false.
    If there are no test or validation images, a share of the labelled ones is set aside and never trained on.
    """
    train_labels, unit = dataset.labels.numpy()[dataset.train], dataset.unit
    name = dataset.name if not dataset.paths else f"{dataset.name} ({HOW_TO_LABEL})"
    check_known(name, train_labels, dataset.classes, unit)
    known = dataset.train[train_labels != UNLABELLED]
    test, known = _set_aside(dataset, dataset.test, known, settings.test_share, (seed, 1))
    valid, known = _set_aside(dataset, dataset.valid, known, settings.valid_share, (seed, 2))
    labelled = known if settings.labels is None else _draw(dataset, known, settings, seed)
    rest = np.setdiff1d(dataset.train, np.concatenate([test, valid]))
    unlabelled = rest if settings.include_labelled else np.setdiff1d(rest, labelled)
    if len(unlabelled) == 0:
        raise UserError(
            f"{dataset.name}: there are no unlabelled {unit.many}; lower data.labels or set data.include_labelled=true"
        )
    absent = np.setdiff1d(np.arange(len(dataset.classes)), dataset.labels.numpy()[labelled])
    if len(absent):
        missing = ", ".join(dataset.classes[index] for index in absent[:5])
        raise UserError(
            f"{dataset.name}: there is no labelled training {unit} of class {missing}; "
            f"label at least one {unit} of every class, or remove the class"
        )
    return Split(
        name=f"{dataset.name}-{len(labelled)}-{settings.balance}-seed{seed}",
        source=dataset.source,
        fingerprint=dataset.fingerprint,
        labelled=tuple(labelled.tolist()),
        unlabelled=tuple(unlabelled.tolist()),
        valid=tuple(valid.tolist()),
        test=tuple(test.tolist()),
    )


def read_split(path: Path) -> Split:
    """Read a split file, which also holds the hash of the split."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(recorded := content.pop("hash", None), str):
        raise UserError(f"{path} is not a split: it has no hash; write one with `cotrain data split`")
    try:
        split = Split.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path} is not a split: {first_problem(error)}") from error
    if split.hash != recorded:
        raise UserError(f"{path} was edited after it was written: its hash is {split.hash}, not {recorded}")
    return split


def _set_aside(
    dataset: Dataset, given: NDArray[np.int64], known: NDArray[np.int64], share: float, seed: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The given rows, or a share of the known rows of every class (never all); and the known rows that remain."""
    if len(given) or share == 0:
        return given, known
    shuffled = np.random.default_rng(seed).permutation(known)
    of_class = dataset.labels.numpy()[shuffled]
    members = [shuffled[of_class == index] for index in range(len(dataset.classes))]
    aside = np.sort(np.concatenate([rows[: min(round(share * len(rows)), len(rows) - 1)] for rows in members]))
    return aside, np.setdiff1d(known, aside)


def _draw(dataset: Dataset, known: NDArray[np.int64], settings: DataSettings, seed: int) -> NDArray[np.int64]:
    classes, labels = len(dataset.classes), settings.labels
    assert labels is not None
    if labels < classes:
        raise UserError(
            f"data.labels={labels} is fewer than the {classes} classes of {dataset.name}; each class needs at least one"
        )
    if labels > len(known):
        aside = "" if len(dataset.test) else " that are not set aside for testing (data.test_share)"
        raise UserError(
            f"data.labels={labels}, but {dataset.name} has only {len(known)} labelled training "
            f"{dataset.unit.many}{aside}"
        )
    rng = np.random.default_rng((seed, len(known)))
    known = rng.permutation(known)
    of_class = dataset.labels.numpy()[known]
    available = np.bincount(of_class, minlength=classes)
    wanted = _shares(labels, np.ones(classes) if settings.balance == "equal" else available.astype(np.float64), rng)
    for index in np.flatnonzero(wanted > available):
        raise UserError(
            f"{dataset.name}: {wanted[index]} labels are needed for class {dataset.classes[index]}, but it has only "
            f"{available[index]}; lower data.labels or set data.balance=proportional"
        )
    drawn = [known[of_class == index][: wanted[index]] for index in range(classes)]
    return np.sort(np.concatenate(drawn))


def _shares(total: int, weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Whole numbers that sum to `total` in proportion to the weights, at least one each; ties are broken at random."""
    exact = total * weights / weights.sum()
    shares = np.maximum(np.floor(exact), 1).astype(np.int64)
    while shares.sum() > total:
        shares[np.argmax(shares)] -= 1
    order = np.lexsort((rng.random(len(weights)), -(exact - shares)))
    shares[order[: total - shares.sum()]] += 1
    return shares
