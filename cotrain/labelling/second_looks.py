"""What deserves a second look: labels that the heads dispute, and images that belong to no class."""

import numpy as np
from numpy.typing import NDArray

from cotrain.audit.suspects import suspects_of
from cotrain.labelling.estimating import HeldOut
from cotrain.labelling.snapshot import Disputed, Estimate, Known, Snapshot
from cotrain.runs.scores import Outputs

LISTED = 50  # disputed labels, at most
NEAREST = 3  # labelled images that an image is compared with


def disputed_labels(found: HeldOut) -> tuple[Disputed, ...]:
    """Labels that deserve a second look, by the outputs of heads that were trained without them. The clearest first.

    The same list as `suspect_labels.csv` of a run, without the labels that are merely not predicted.
    """
    suspects = suspects_of(Outputs(found.logits, found.labels, np.array(found.rows, np.int64)), found.rule)
    return tuple(Disputed(one.row, one.label, one.proposed, one.of_proposed) for one in suspects if one.disputed)[
        :LISTED
    ]


def still_disputed(earlier: Snapshot | Estimate | None, known: Known) -> tuple[Disputed, ...]:
    """The labels that were disputed earlier and that nobody has changed since, if the class proposed still exists."""
    if earlier is None:
        return ()
    return tuple(
        one for one in earlier.disputed if one.proposed in known.classes and known.labels.get(one.row) == one.label
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
