"""Which images to ask for: first those that stand for clusters, then those that tell most about the others.

Without labels, the images are divided into clusters, and the questions are the images nearest the centres, those of the
largest clusters first.

With labels, every image covers the images that are similar to it. The next image to ask for is the one that adds most
to what the images asked so far cover, where an image counts as much as the heads doubt it. So a question is about an
uncertain image that is like many others, and never about a near-duplicate of an image that was asked before
(uncertainty herding: Bae, Noh and Sutherland, 2024).
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotrain.data.bank import Bank
from cotrain.data.kinds import evenly

Floats = NDArray[np.float32]
DIMENSIONS = 64  # principal components in which images are compared
FLATTEST = 0.02  # of the mean standard deviation: no feature is scaled up more than by this one
NEIGHBOUR = 20  # an image covers others up to about the distance of this neighbour
MEASURED = 5_000  # images that set scale and components, at most
REFERENCES = 2_000  # images whose coverage counts, at most
CANDIDATES = 10_000  # images to choose from, at most
CLUSTERS = 256  # at most
AT_ONCE = 4_096
IN_RANDOM_ORDER, AUDIT = 1, 2  # streams of random numbers


@dataclass(frozen=True)
class Space:
    """Images as points on a sphere, and how far each of them covers others."""

    rows: NDArray[np.int64]  # of the dataset, ascending
    points: Floats  # (n, d), of length 1
    reach: float  # distance

    def places(self, rows: Collection[int]) -> NDArray[np.int64]:
        """Where these rows are in `points`; rows that are not here are left out."""
        return np.flatnonzero(np.isin(self.rows, np.fromiter(rows, np.int64, len(rows))))

    def covered(self, places: NDArray[np.int64], by: NDArray[np.int64]) -> Floats:
        """(by, places) how much each image `by` covers each of the others, from 0 to 1."""
        squared = np.maximum(2 - 2 * self.points[by] @ self.points[places].T, 0)
        return np.exp(-squared / self.reach**2, dtype=np.float32)


def space_of(bank: Bank, rows: NDArray[np.int64]) -> Space:
    """The principal components of the standardised features."""
    rows = np.sort(rows)
    some = _pooled(bank, evenly(rows, MEASURED))
    spread = some.std(axis=0)
    mean, scale = some.mean(axis=0), np.maximum(spread, FLATTEST * spread.mean())
    scale[scale == 0] = 1
    standardised = (some - mean) / scale
    _, directions = np.linalg.eigh(standardised.T @ standardised)
    directions = directions[:, -DIMENSIONS:]
    parts = [
        (_pooled(bank, rows[at : at + AT_ONCE]) - mean) / scale @ directions for at in range(0, len(rows), AT_ONCE)
    ]
    points = np.concatenate(parts)
    points /= np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-6)
    return Space(rows, points, _reach(points))


def _pooled(bank: Bank, rows: NDArray[np.int64]) -> Floats:
    return bank.plain(rows).mean(dim=(2, 3)).numpy()


def _reach(points: Floats) -> float:
    """The mean distance to the 20th nearest of a sample of the images, corrected for the size of the sample."""
    some = points[evenly(np.arange(len(points)), REFERENCES)]
    place = min(max(1, round(NEIGHBOUR * len(some) / len(points))), len(some) - 1)
    squared = np.maximum(2 - 2 * some @ some.T, 0)
    return max(float(np.sqrt(np.partition(squared, place, axis=1)[:, place]).mean()), 1e-3)


def shuffled_rows(rows: NDArray[np.int64], seed: int, stream: int) -> NDArray[np.int64]:
    """A permutation of which any first part is a uniform sample."""
    return np.random.default_rng((seed, stream)).permutation(rows)


def representatives(space: Space, asked: Collection[int], count: int, seed: int) -> list[int]:
    """The rows that stand for clusters of which no image was asked, the largest cluster first.

    There are as many clusters as images asked and to be asked (as in TypiClust: Hacohen, Dekel and Weinshall, 2022).
    """
    from sklearn.cluster import KMeans  # slow to import

    before = space.places(asked)
    some = space.points[evenly(np.arange(len(space.rows)), CANDIDATES)]
    clusters = min(len(before) + count, CLUSTERS, len(np.unique(some, axis=0)))
    model = KMeans(clusters, n_init=1, max_iter=30, random_state=seed).fit(some)
    member = model.predict(space.points)
    size, known = np.bincount(member, minlength=clusters), np.bincount(member[before], minlength=clusters) > 0
    chosen: list[int] = []
    for cluster in np.lexsort((-size, known)).tolist():
        own = np.flatnonzero(member == cluster)
        if len(own) and len(chosen) < count and not known[cluster]:
            distances = ((space.points[own] - model.cluster_centers_[cluster]) ** 2).sum(axis=1)
            chosen.append(int(space.rows[own[distances.argmin()]]))
    more = most_informative(space, None, {*asked, *chosen}, count - len(chosen))
    return [*chosen, *more]


def most_informative(space: Space, doubt: Floats | None, asked: Collection[int], count: int) -> list[int]:
    """The rows to ask for, best first, none of them `asked`.

    `doubt` (n,) is how much each image of the space counts; None: all the same.
    """
    references = evenly(np.arange(len(space.rows)), REFERENCES)
    worth = np.ones(len(references), np.float32) if doubt is None else doubt[references]
    covered = np.zeros(len(references), np.float32)
    if len(before := space.places(asked)):
        covered = space.covered(references, before).max(axis=0)
    free = evenly(np.setdiff1d(np.arange(len(space.rows)), before), CANDIDATES)
    if not len(free) or count < 1:
        return []
    covers = space.covered(references, free)
    return space.rows[free[_greedy(covers, covered, worth, count)]].tolist()


def _greedy(covers: Floats, covered: Floats, worth: Floats, count: int) -> list[int]:
    """Choose rows of `covers` one by one, each for what it adds.

    What an image adds can only become less as others are chosen, so that an outdated value is an upper bound, and few
    have to be computed again (Minoux, 1978).
    """
    gains = np.concatenate([np.maximum(part - covered, 0) @ worth for part in np.array_split(covers, 16)])
    heap = [(-gain, place) for place, gain in enumerate(gains.tolist())]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < count:
        _, place = heapq.heappop(heap)
        gain = float(np.maximum(covers[place] - covered, 0) @ worth)
        if heap and gain < -heap[0][0]:
            heapq.heappush(heap, (-gain, place))
            continue
        chosen.append(place)
        covered = np.maximum(covered, covers[place])
    return chosen
