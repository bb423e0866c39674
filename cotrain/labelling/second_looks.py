"""What deserves a second look: disputed labels, images that belong to no class, and galleries of a class."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from cotrain.labelling.estimating import HeldOut
from cotrain.labelling.snapshot import Disputed, Known, Snapshot

LISTED = 50  # disputed labels, at most
IMPOSSIBLE = 0.02  # probability of a disputed label, at most
NEAREST = 3  # labelled images that an image is compared with


def disputed_labels(found: HeldOut) -> tuple[Disputed, ...]:
    """Labels that are probably wrong, by the outputs of heads that were trained without them. The clearest first.

    A label is disputed if all heads agree on another class, with at least the probability that images labelled with
    that class have on average (confident learning: Northcutt, Jiang and Chuang, 2021), and if the label itself is
    nearly impossible.
    """
    probabilities, labels = found.probabilities, found.labels.numpy()
    rows, proposed = np.arange(len(labels)), probabilities.argmax(axis=1)
    of_label = probabilities[rows, labels]
    images = np.bincount(labels, minlength=probabilities.shape[1])
    usual = np.bincount(labels, of_label, minlength=len(images)) / np.maximum(images, 1)
    agreed = (found.logits.argmax(dim=-1).numpy() == proposed).all(axis=0)
    clear = (probabilities[rows, proposed] >= usual[proposed]) & (of_label <= IMPOSSIBLE)
    disputed = rows[(proposed != labels) & agreed & clear]
    return tuple(
        Disputed(found.rows[place], int(labels[place]), int(proposed[place]), float(probabilities[place].max()))
        for place in disputed[np.argsort(of_label[disputed], kind="stable")][:LISTED]
    )


def still_disputed(earlier: Snapshot | None, known: Known) -> tuple[Disputed, ...]:
    """The disputed labels of an earlier snapshot that nobody has changed since. Classes may have moved."""
    if earlier is None:
        return ()
    number = {name: index for index, name in enumerate(known.classes)}
    place = [number.get(name, -1) for name in earlier.classes]
    return tuple(
        Disputed(one.row, place[one.label], place[one.proposed], one.probability)
        for one in earlier.disputed
        if min(place[one.label], place[one.proposed]) >= 0 and known.labels.get(one.row) == place[one.label]
    )


def stranger_scores(
    points: NDArray[np.float32], labelled: NDArray[np.int64], strangers: NDArray[np.int64]
) -> NDArray[np.float32]:
    """How unlike the labelled images each image is: 1 - its mean cosine to the nearest ones. (n, d) unit -> (n,).

    Where people have found strangers already, likeness to the nearest one of these counts too.
    """
    likeness = points @ points[labelled].T
    likeness[labelled, np.arange(len(labelled))] = -1  # not to itself
    nearest = np.sort(likeness, axis=1)[:, -NEAREST:].mean(axis=1)
    if not len(strangers):
        return 1 - nearest
    like_strangers = points @ points[strangers].T
    return 1 - nearest + np.maximum(like_strangers.max(axis=1) - nearest, 0)


def likely_strangers(snapshot: Snapshot, rows: NDArray[np.int64], hidden: Collection[int], count: int) -> list[int]:
    """Of these rows, the ones that least belong to any class."""
    return _ordered(-snapshot.stranger_score, rows, hidden, count)


def gallery(
    snapshot: Snapshot,
    rows: NDArray[np.int64],
    of_class: int,
    count: int,
    *,
    least_confident: bool = False,
    hidden: Collection[int] = (),
) -> list[int]:
    """Of these rows, the ones that the model takes for this class, by its probability."""
    taken = rows[predicted(snapshot)[rows] == of_class]
    probability = snapshot.probabilities[:, of_class]
    return _ordered(probability if least_confident else -probability, taken, hidden, count)


def least_confident(snapshot: Snapshot, rows: NDArray[np.int64], hidden: Collection[int], count: int) -> list[int]:
    """Of these rows, the ones whose most probable class has the lowest probability."""
    return _ordered(snapshot.probabilities.max(axis=1), rows, hidden, count)


def predicted(snapshot: Snapshot) -> NDArray[np.int64]:
    """(n,) the ensemble's class; -1 for an image that could not be read."""
    classes = snapshot.probabilities.argmax(axis=1)
    return np.where(snapshot.probabilities.any(axis=1), classes, -1)


def _ordered(score: NDArray[np.floating], rows: NDArray[np.int64], hidden: Collection[int], count: int) -> list[int]:
    """The rows with the lowest score that are not hidden; ties by row."""
    shown = rows[~np.isin(rows, [*hidden])] if hidden else rows
    return shown[np.lexsort((shown, score[shown]))][:count].tolist()
