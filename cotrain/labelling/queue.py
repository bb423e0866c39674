"""Which image a page gets next: none that somebody has answered or skipped, and none that another page shows."""

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from cotrain.labelling.guesses import Guesses, Mask
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.image_index import ImageIndex
from cotrain.labelling.order import AUDIT, IN_RANDOM_ORDER, shuffled_rows

LEASE = 120.0  # seconds for which an image that one page shows is not offered to another


class Queue:
    """The unlabelled images. It follows the history, so that each event costs as many steps as it names images."""

    def __init__(self, index: ImageIndex, history: LabelHistory, seed: int) -> None:
        self.index, self.history = index, history
        self._shuffled = shuffled_rows(index.rows, seed, IN_RANDOM_ORDER).tolist()
        self._audit = shuffled_rows(index.rows, seed, AUDIT).tolist()
        self._is_open: Mask = np.zeros(len(index.paths), bool)
        self._is_open[index.rows] = True
        self._count, self._position = len(index), 0
        self._guesses: Guesses | None = None  # those that `_counts` counts
        self._counts: list[int] = []
        self._leases: dict[int, tuple[str, float]] = {}  # row -> page, and when it ends
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            self._follow()
            return self._count

    def open_images(self) -> Mask:
        """(n,) which rows nobody has answered or skipped."""
        with self._lock:
            self._follow()
            return self._is_open.copy()

    def guessed(self, guesses: Guesses) -> dict[int, int]:
        """For each class of the guesses, how many of the unlabelled images are taken for it."""
        with self._lock:
            self._follow()
            if guesses is not self._guesses:
                self._guesses, self._counts = guesses, guesses.counts(self._is_open).tolist()
            return dict(zip(guesses.classes, self._counts, strict=True))

    def next(
        self, page: str, count: int, have: Iterable[str], ranking: Sequence[int], *, audit: bool = False
    ) -> list[str]:
        """Images to ask this page next: those of the ranking, then random ones; for an audit only random ones.

        Images that other pages show come only if there are no others.
        """
        shown = {self.index.row(image) for image in have}
        with self._lock:
            self._follow()
            now = time.monotonic()
            self._leases = {row: lease for row, lease in self._leases.items() if lease[1] > now}
            taken = {row for row, (whose, _) in self._leases.items() if whose != page}
            rows = self._first(count, shown | taken, ranking, audit) or self._first(count, shown, ranking, audit)
            self._leases |= dict.fromkeys(rows, (page, now + LEASE))
        return [self.index.paths[row] for row in rows]

    def _first(self, count: int, without: Collection[int], ranking: Sequence[int], audit: bool) -> list[int]:
        rows = self._audit if audit else self._ranked(ranking)
        return list(islice((row for row in rows if self._is_open[row] and row not in without), count))

    def _ranked(self, ranking: Sequence[int]) -> Iterator[int]:
        yield from ranking
        ranked = set(ranking)
        yield from (row for row in self._shuffled if row not in ranked)

    def _follow(self) -> None:
        """Open and close the images of the events since the last time."""
        self._position, labels, images = self.history.changed_since(self._position)
        for image in images:
            if image in self.index:
                self._set(self.index.row(image), image not in labels.values and image not in labels.skipped)

    def _set(self, row: int, is_open: bool) -> None:
        if self._is_open[row] == is_open:
            return
        self._is_open[row] = is_open
        change = 1 if is_open else -1
        self._count += change
        if self._guesses is not None:
            self._counts[self._guesses.columns[row]] += change
