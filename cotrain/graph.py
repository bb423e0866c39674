"""Label propagation on a nearest-neighbour graph (Iscen et al., CVPR 2019; Sellars et al., 2021).

Up to LARGEST rows are all in the graph. Of more rows, a sample is, and the other rows take what reached their nearest
neighbours in it (Delalleau et al., AISTATS 2005), so that time and memory do not grow with the square of the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from scipy import sparse

Floats = NDArray[np.float64]
BLOCK = 1 << 24  # similarities held at once
LARGEST = 50_000  # rows that are all in the graph
NODES = 5_000  # rows in the graph if there are more
AT_ONCE = 4_096  # rows attached at once


def divided(
    rows: Tensor, labelled: Tensor, wanted: Callable[[], Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The rows that the graph joins, sorted, and the rows to attach to them: all and none, unless there are too many.

    A sample takes labelled rows first, up to half of it, then rows that are wanted, then others. Wanted rows that are
    not in it are attached.
    """
    if len(rows) <= LARGEST:
        return rows, rows[:0]

    def shuffled(some: Tensor) -> Tensor:
        return some[torch.randperm(len(some), generator=generator, device=generator.device).cpu()]

    needed = wanted()
    preferred = torch.cat([shuffled(labelled)[: NODES // 2], shuffled(needed), shuffled(rows)]).numpy()
    first = np.unique(preferred, return_index=True)[1]
    nodes = torch.from_numpy(np.sort(preferred[np.sort(first)[:NODES]]))
    return nodes, needed[~torch.isin(needed, nodes)]


def attached(
    rows: Tensor, see: Callable[[Tensor], Tensor], nodes: Tensor, spread: Tensor, k: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """What reached the k nearest nodes of other rows, weighed by cosine similarity clipped at 0, a few rows at a time.

    `see` gives the features of rows, `nodes` are the (N, D) features of the nodes, and `spread` (N, C) is what reached
    them. Yields rows and (n, C) values, which sum to 1, or are zeros where nothing arrived.
    """
    compared = F.normalize(nodes.float(), dim=1).T
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        unit = F.normalize(see(part).float(), dim=1)
        similarity, places = (unit @ compared).topk(min(k, len(nodes)), dim=1)
        reached = (similarity.clamp(min=0).to(spread)[:, :, None] * spread[places]).sum(dim=1)
        total = reached.sum(dim=1, keepdim=True)
        yield part, torch.where(total > 0, reached / total, 0)


def nearest(features: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Exact search for the k other rows most similar to each row: their inner products and indices, (n, k).

    Fewer than k if there are not enough rows.
    """
    rows = len(features)
    k = min(k, rows - 1)
    found = []
    for own in torch.arange(rows, device=features.device).split(max(1, BLOCK // rows)):
        similarity = features[own] @ features.T
        similarity[torch.arange(len(own), device=own.device), own] = -torch.inf
        found.append(similarity.topk(k, dim=1))
    return torch.cat([block.values for block in found]), torch.cat([block.indices for block in found])


class Graphs:
    """Graphs of features that do not change from training to training, such as those of a frozen trunk.

    The last two are kept, because training compares images in two ways.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[bytes, int], sparse.csr_array] = {}

    def of(self, features: Tensor, k: int) -> sparse.csr_array:
        """As `neighbour_graph`; a copy."""
        unit = F.normalize(features.float(), dim=1)
        key = hashlib.blake2b(unit.cpu().numpy().tobytes()).digest(), k
        if key not in self._made:
            self._made = {**dict([*self._made.items()][-1:]), key: _graph(unit, k)}
        return self._made[key].copy()


def neighbour_graph(features: Tensor, k: int) -> sparse.csr_array:
    """S = D^-1/2 W D^-1/2 with W = max(A, A^T). A holds each row's cosine similarity to its k nearest, clipped at 0."""
    return _graph(F.normalize(features.float(), dim=1), k)


def _graph(unit: Tensor, k: int) -> sparse.csr_array:
    from scipy import sparse  # slow to import

    rows = len(unit)
    similarity, places = nearest(unit, k)
    values = similarity.clamp(min=0).double().cpu().numpy().ravel()
    starts = np.repeat(np.arange(rows), similarity.shape[1])
    directed = sparse.csr_array((values, (starts, places.cpu().numpy().ravel())), shape=(rows, rows))
    both = directed.maximum(directed.T)
    degree = both.sum(axis=1)
    scale = sparse.dia_array((np.divide(1, np.sqrt(degree), where=degree > 0, out=np.zeros(rows))[None], 0), both.shape)
    return sparse.csr_array(scale @ both @ scale)


def propagate(
    graph: sparse.csr_array, seeds: Floats, alpha: float = 0.99, *, iterations: int = 30, tolerance: float = 1e-3
) -> Floats:
    """(I - alpha S)^-1 Y for each class by conjugate gradients: (n, C) -> (n, C), non-negative, rows sum to 1.

    A row that no label reaches is all zeros.
    """
    return row_normalised(reached(graph, seeds, alpha, iterations=iterations, tolerance=tolerance))


def reached(
    graph: sparse.csr_array, seeds: Floats, alpha: float, *, iterations: int = 30, tolerance: float = 1e-3
) -> Floats:
    """How much of each column of seeds reaches each row: as `propagate`, before the rows are normalised."""
    from scipy import sparse  # slow to import
    from scipy.sparse.linalg import cg

    system = sparse.eye_array(graph.shape[0], format="csr") - alpha * graph
    found = [cg(system, seeds[:, column], rtol=tolerance, maxiter=iterations)[0] for column in range(seeds.shape[1])]
    return np.maximum(np.stack(found, axis=1), 0)


def aligned(probabilities: Floats, shares: Floats, times: int = 100, most: float = 0.01) -> Floats:
    """Move the shares of the predicted classes towards `shares`: rescale `times` times, each by at most 1 +- `most`."""
    for _ in range(times):
        chosen = np.bincount(probabilities.argmax(axis=1), minlength=len(shares)) / max(len(probabilities), 1)
        factors = np.clip(shares / (chosen + 1e-7), 1 - most, 1 + most)
        probabilities = row_normalised(probabilities * factors)
    return probabilities


def row_normalised(values: Floats) -> Floats:
    total = values.sum(axis=1, keepdims=True)
    return np.divide(values, total, where=total > 0, out=np.zeros_like(values))
