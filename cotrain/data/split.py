"""Which rows are labelled, unlabelled, valid and test: drawn once from a seed, named, hashed, kept in the run."""

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cotrain.data.dataset import UNLABELLED, Dataset
from cotrain.types import Settings, UserError


class Split(Settings):
    """Rows of one data set: `source` says where it was, `fingerprint` what was in it."""

    name: str
    source: str
    fingerprint: str
    labelled: tuple[int, ...]
    unlabelled: tuple[int, ...]
    valid: tuple[int, ...]
    test: tuple[int, ...]

    @property
    def hash(self) -> str:
        """Of the content alone: a split is the same wherever its data lie."""
        content = self.model_dump_json(exclude={"name", "source"})
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def draw_split(
    dataset: Dataset,
    *,
    labels: int | None,
    balance: Literal["equal", "proportional"],
    include_labelled: bool,
    seed: int,
) -> Split:
    """Keep the labels of `labels` training images, of all that have one if None; the rest become unlabelled.

    As in the paper's protocol the unlabelled images include the labelled ones, unless `include_labelled` is false.
    """
    known = dataset.train[dataset.labels.numpy()[dataset.train] != UNLABELLED]
    labelled = known if labels is None else _draw(dataset, known, labels, balance, seed)
    unlabelled = dataset.train if include_labelled else np.setdiff1d(dataset.train, labelled)
    if len(unlabelled) == 0:
        raise UserError(
            f"{dataset.name}: no unlabelled image is left; lower data.labels or set data.include_labelled=true"
        )
    absent = np.setdiff1d(np.arange(len(dataset.classes)), dataset.labels.numpy()[labelled])
    if len(absent):
        missing = ", ".join(dataset.classes[index] for index in absent[:5])
        raise UserError(f"{dataset.name}: no labelled image of class {missing}; label at least one of every class")
    return Split(
        name=f"{Path(dataset.name).stem}-{len(labelled)}-{balance}-seed{seed}",
        source=dataset.name,
        fingerprint=dataset.fingerprint,
        labelled=tuple(labelled.tolist()),
        unlabelled=tuple(unlabelled.tolist()),
        valid=tuple(dataset.valid.tolist()),
        test=tuple(dataset.test.tolist()),
    )


def _draw(dataset: Dataset, known: NDArray[np.int64], labels: int, balance: str, seed: int) -> NDArray[np.int64]:
    classes = len(dataset.classes)
    if labels < classes:
        raise UserError(
            f"data.labels={labels} is fewer than the {classes} classes of {dataset.name}: one each at least"
        )
    if labels > len(known):
        raise UserError(f"data.labels={labels}, but {dataset.name} has only {len(known)} labelled training images")
    rng = np.random.default_rng((seed, len(known)))
    known = rng.permutation(known)
    of_class = dataset.labels.numpy()[known]
    available = np.bincount(of_class, minlength=classes)
    wanted = _shares(labels, np.ones(classes) if balance == "equal" else available.astype(np.float64), rng)
    for index in np.flatnonzero(wanted > available):
        raise UserError(
            f"{dataset.name}: {wanted[index]} labels of class {dataset.classes[index]} are wanted but it has only "
            f"{available[index]}; lower data.labels or set data.balance=proportional"
        )
    drawn = [known[of_class == index][: wanted[index]] for index in range(classes)]
    return np.sort(np.concatenate(drawn))


def _shares(total: int, weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Whole numbers adding up to `total`, in proportion to the weights, at least one each; remainders at random."""
    exact = total * weights / weights.sum()
    shares = np.maximum(np.floor(exact), 1).astype(np.int64)
    while (excess := shares.sum() - total) > 0:
        shares[np.argmax(shares)] -= min(excess, 1)
    order = np.lexsort((rng.random(len(weights)), -(exact - shares)))
    shares[order[: total - shares.sum()]] += 1
    return shares
