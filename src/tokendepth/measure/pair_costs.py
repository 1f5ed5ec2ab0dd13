"""Costs of pairs: exact ones where they are asked for, approximate ones for all pairs in blocks."""

from abc import ABC, abstractmethod
from typing import no_type_check

import numpy as np
from jaxtyping import Float, Int
from numba import njit

EPS = float(np.finfo(np.float64).eps)


class PairCosts(ABC):
    """What an assignment needs to know about the cost of each pair of a row and a column."""

    shape: tuple[int, int]
    cheap_when_rough: bool
    """Whether float32 saves enough to look there first."""

    @abstractmethod
    def of(
        self, rows: Int[np.ndarray, " pair"], columns: Int[np.ndarray, " pair"]
    ) -> Float[np.ndarray, " pair"]:
        """Exact costs, to the last few bits."""

    @abstractmethod
    def turned(self) -> "PairCosts":
        """The same costs with rows and columns exchanged."""

    @abstractmethod
    def prepare(self, prices: Float[np.ndarray, " column"], *, rough: bool) -> "Blocks":
        """For passes over the costs less the prices of columns; `rough` is in float32."""


class Blocks(ABC):
    """One pass over all pairs; `cost[i, j] - price[j]` is an entry plus the base of its row."""

    base: Float[np.ndarray, " row"]
    error: Float[np.ndarray, " row"]
    """No entry of the row is wrong by more."""
    width: int
    """How many numbers an entry is computed from: more than a few, and a product of matrices is
    best left to many threads of its own."""
    dtype: type

    @abstractmethod
    def fill(
        self, rows: Int[np.ndarray, " some"], columns: slice, room: np.ndarray
    ) -> Float[np.ndarray, "some columns"]:
        """Entries of the rows; `room` may hold them."""


class SquaredDistances(PairCosts):
    """Squared Euclidean distances between points.

    Exact ones come from differences of coordinates, so that equal points are exactly 0 apart
    wherever they lie. Approximate ones come from a product of coordinates less a common centre.
    """

    cheap_when_rough = True

    def __init__(
        self, source: Float[np.ndarray, "row dim"], target: Float[np.ndarray, "column dim"]
    ) -> None:
        self.source, self.target = source, target
        self.shape = (len(source), len(target))
        centre = (source.mean(axis=0) + target.mean(axis=0)) / 2
        self._left, self._right = source - centre, target - centre
        self._left_norm = np.square(self._left).sum(axis=1)
        self._right_norm = np.square(self._right).sum(axis=1)

    def of(
        self, rows: Int[np.ndarray, " pair"], columns: Int[np.ndarray, " pair"]
    ) -> Float[np.ndarray, " pair"]:
        """Sums of squared differences."""
        return _squared(self.source, self.target, rows, columns)

    def turned(self) -> "SquaredDistances":
        """From the targets to the sources."""
        return SquaredDistances(self.target, self.source)

    def between(self, rows: slice, columns: slice) -> Float[np.ndarray, "some others"]:
        """Costs of a block of pairs, up to the rounding of a matrix product."""
        product = self._left[rows] @ self._right[columns].T
        return self._left_norm[rows, None] + self._right_norm[columns] - 2 * product

    def prepare(self, prices: Float[np.ndarray, " column"], *, rough: bool) -> "ProductBlocks":
        """-2 x·y + (|y|² - price), as one product of longer vectors; the base is |x|²."""
        dtype = np.float32 if rough else np.float64
        ones = np.ones((len(self._left), 1))
        left = np.concatenate([self._left, ones], axis=1).astype(dtype)
        last = (self._right_norm - prices)[:, None]
        right = np.concatenate([-2 * self._right, last], axis=1).astype(dtype)
        largest = self._left_norm + self._right_norm.max() + np.abs(prices).max()
        size = (4 + self._left.shape[1]) * largest
        return ProductBlocks(left, right, self._left_norm, float(np.finfo(dtype).eps) * size)


class ProductBlocks(Blocks):
    """Entries that are products of two vectors."""

    def __init__(
        self,
        left: Float[np.ndarray, "row dim"],
        right: Float[np.ndarray, "column dim"],
        base: Float[np.ndarray, " row"],
        error: Float[np.ndarray, " row"],
    ) -> None:
        self.left, self.right = left, np.ascontiguousarray(right.T)
        self.base, self.error = base, error
        self.width, self.dtype = left.shape[1], left.dtype.type

    def fill(
        self, rows: Int[np.ndarray, " some"], columns: slice, room: np.ndarray
    ) -> Float[np.ndarray, "some columns"]:
        """One matrix product."""
        right = self.right[:, columns]
        return np.matmul(self.left[rows], right, out=room[: len(rows), : right.shape[1]])


class GivenCosts(PairCosts):
    """The entries of a matrix."""

    cheap_when_rough = False

    def __init__(self, matrix: Float[np.ndarray, "row column"]) -> None:
        self._matrix = matrix
        rows, columns = matrix.shape
        self.shape = (rows, columns)
        self.least = matrix.min(axis=1)
        self._largest = np.maximum(matrix.max(axis=1), -self.least)

    def of(
        self, rows: Int[np.ndarray, " pair"], columns: Int[np.ndarray, " pair"]
    ) -> Float[np.ndarray, " pair"]:
        """As they stand there."""
        return self._matrix[rows, columns]

    def turned(self) -> "GivenCosts":
        """The transposed matrix."""
        return GivenCosts(self._matrix.T)

    def prepare(self, prices: Float[np.ndarray, " column"], *, rough: bool) -> "MatrixBlocks":
        """Entries less prices; the base of a row is its smallest entry."""
        dtype = np.float32 if rough else np.float64
        error = 4 * float(np.finfo(dtype).eps) * (self._largest + np.abs(prices).max())
        return MatrixBlocks(self._matrix, prices, self.least, error, dtype)


class MatrixBlocks(Blocks):
    """Entries of a matrix less the prices of its columns, and less the base of each row."""

    width = 1

    def __init__(
        self,
        matrix: Float[np.ndarray, "row column"],
        prices: Float[np.ndarray, " column"],
        base: Float[np.ndarray, " row"],
        error: Float[np.ndarray, " row"],
        dtype: type,
    ) -> None:
        self._matrix, self._prices = matrix, prices
        self.base, self.error, self.dtype = base, error, dtype

    def fill(
        self, rows: Int[np.ndarray, " some"], columns: slice, room: np.ndarray
    ) -> Float[np.ndarray, "some columns"]:
        """Two subtractions, in float64 until they are kept."""
        entries = (self._matrix[rows, columns] - self.base[rows, None]) - self._prices[columns]
        block = room[: len(rows), : entries.shape[1]]
        block[:] = entries
        return block


@njit(cache=True, nogil=True)
@no_type_check
def _squared(source, target, rows, columns):
    out = np.empty(len(rows))
    dim = source.shape[1]
    for at in range(len(rows)):
        i, j = rows[at], columns[at]
        total = 0.0
        for axis in range(dim):
            difference = source[i, axis] - target[j, axis]
            total += difference * difference
        out[at] = total
    return out
