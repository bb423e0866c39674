"""Features: one row of numbers and categories per example, in memory, in a memory map or sparse.

Values are stored as they are; a category is stored as the number of its value, and -1 if it is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cotrain.types import UserError

if TYPE_CHECKING:
    from scipy import sparse

UNKNOWN = -1  # the code of a category that was not there in training, or of a missing one
BLOCK = 2**22  # values that are looked at at once
FARTHEST = 1e9  # standard deviations from the mean; the square of more would not be a float32


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers, or one of several categories in each row."""

    name: str
    categories: tuple[str, ...] | None = None  # None: numbers

    @property
    def width(self) -> int:
        """How many inputs of the network it becomes: one, or one per category."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class Features:
    """The rows of a table. `features[rows]` are some of them, dense; a sparse matrix is never dense as a whole."""

    values: NDArray | sparse.csr_array  # (N, D)
    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def __getitem__(self, rows: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        found = self.values[rows]
        return np.asarray(found if isinstance(found, np.ndarray) else found.toarray(), np.float64)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """As images of one pixel whose channels are the inputs of the network."""
        return len(self), 1, 1, sum(column.width for column in self.columns)

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.values, np.ndarray)

    @property
    def kept(self) -> str:
        if self.is_sparse:
            return "sparse, in memory"
        return "read from disk during training" if isinstance(self.values, np.memmap) else "in memory"

    @cached_property
    def categorical(self) -> NDArray[np.int64]:
        """The places of the columns with categories."""
        return np.flatnonzero([column.categories is not None for column in self.columns])

    @cached_property
    def one_hot(self) -> tuple[int, ...]:
        """For `ops.one_hot`: the number of categories of each column, 0 for numbers. Empty: all are numbers."""
        if not len(self.categorical):
            return ()
        return tuple(len(column.categories) if column.categories is not None else 0 for column in self.columns)

    def blocks(self, rows: NDArray[np.int64] | None = None) -> list[NDArray[np.int64]]:
        """The rows, in parts that are small when they are dense."""
        rows = np.arange(len(self)) if rows is None else rows
        return np.array_split(rows, -(-len(rows) * len(self.columns) // BLOCK) or 1)

    def statistics(self, rows: NDArray[np.int64]) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each column over these rows; 0 and 1 for categories."""
        mean, squares = np.zeros(len(self.columns)), np.zeros(len(self.columns))
        for block in self.blocks(rows):
            mean += self[block].sum(axis=0) / len(rows)
        for block in self.blocks(rows):
            squares += ((self[block] - mean) ** 2).sum(axis=0) / len(rows)
        std = np.sqrt(squares)
        flat = std <= 1e-7 * abs(mean)  # constant up to rounding
        mean[self.categorical], std[self.categorical] = 0, 1
        return mean.tolist(), np.where(flat, 1, std).tolist()

    def check_finite(self, name: str) -> None:
        """Refuse NaN, infinity and what is infinite as float32, by column and row."""
        if not isinstance(self.values, np.ndarray) and not _infinite(self.values.data).any():
            return
        for block in self.blocks():
            for row, column in np.argwhere(_infinite(self[block]))[:1]:
                value = self[block[row : row + 1]][0, column]
                raise UserError(
                    f"{name}: column {self.columns[column].name!r} is {word(value)} in row {block[row]}, "
                    "counted from 0; fill it in, or leave out the row or the column"
                )

    def hashes(self) -> NDArray[np.uint64]:
        """(N,) one per row, of its values as float32; the same for a sparse matrix and its dense copy."""
        keys = np.random.default_rng(0).integers(1, 2**63, len(self.columns), np.uint64) * np.uint64(2) + np.uint64(1)
        found = [_words(self[block]) @ keys for block in self.blocks()]
        return np.concatenate(found)

    def followed_by(self, more: Features) -> Features:
        """These rows and then more, in memory."""
        if self.is_sparse or more.is_sparse:
            from scipy import sparse  # slow to import

            return Features(sparse.csr_array(sparse.vstack([self.values, more.values])), self.columns)
        return Features(np.concatenate([self.values, more.values]), self.columns)

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The columns as JSON."""
        return [asdict(column) for column in self.columns]


def standardised(values: NDArray[np.float64], mean: ArrayLike, std: ArrayLike) -> NDArray[np.float64]:
    """(n, D) in standard deviations from the mean. The farthest values are clipped, so that none becomes infinite."""
    with np.errstate(over="ignore"):
        distances = (values - np.asarray(mean)) / np.asarray(std)
    return distances.clip(-FARTHEST, FARTHEST, out=distances)


def _infinite(values: NDArray) -> NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        return ~np.isfinite(values.astype(np.float32))


def _words(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    plain = values.astype(np.float32) + np.float32(0)  # -0 is 0
    mixed = plain.view(np.uint32).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(32))


def word(value: float) -> str:
    if np.isnan(value):
        return "empty (NaN)"
    return "infinite" if np.isinf(value) else f"too large ({value:.3g})"


def numbered(columns: int, names: Sequence[str] | None = None) -> tuple[Column, ...]:
    """Columns of numbers with these names, or with their places as names."""
    return tuple(Column(str(name)) for name in (names if names is not None else range(columns)))
