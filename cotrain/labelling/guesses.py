"""What the page shows of a snapshot, worked out once after each training, so that a click only looks it up."""

import numpy as np
from numpy.typing import NDArray

from cotrain.labelling.snapshot import Known, Snapshot

Mask = NDArray[np.bool_]


class Guesses:
    """The classes that a model takes images for. Images are rows of the dataset."""

    def __init__(self, snapshot: Snapshot, known: Known) -> None:
        """`known` is what the snapshot was trained on."""
        self.snapshot, self.known, self.classes = snapshot, known, snapshot.classes
        self.probabilities = snapshot.probabilities  # (n, C)
        self.columns = self.probabilities.argmax(axis=1)  # (n,) of the most probable class
        self._confidence = self.probabilities.max(axis=1)
        self._by_confidence = np.argsort(-self._confidence, kind="stable")
        self._by_strangeness = np.argsort(-snapshot.stranger_score, kind="stable")

    def number(self, row: int) -> int:
        """The most probable class of an image."""
        return self.classes[int(self.columns[row])]

    def of(self, row: int) -> list[tuple[int, float]]:
        """Every class with its probability."""
        return list(zip(self.classes, self.probabilities[row].tolist(), strict=True))

    def counts(self, among: Mask) -> NDArray[np.int64]:
        """(C,) the number of images taken for each class."""
        return np.bincount(self.columns[among], minlength=len(self.classes))

    def most_confident(self, among: Mask, numbers: set[int] | None = None) -> NDArray[np.int64]:
        """These rows, the most confident first; only those taken for one of these classes."""
        if numbers is not None:
            among = among & np.isin(self.columns, [at for at, number in enumerate(self.classes) if number in numbers])
        return self._by_confidence[among[self._by_confidence]]

    def least_confident(self, among: Mask) -> NDArray[np.int64]:
        return self.most_confident(among)[::-1]

    def strangest(self, among: Mask) -> NDArray[np.int64]:
        """These rows, those that are the least likely to belong to any class first."""
        return self._by_strangeness[among[self._by_strangeness]]
