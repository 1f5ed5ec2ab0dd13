"""Passes over all pairs of an assignment, in blocks and in as many threads as torch may use."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from tokendepth.measure.candidates import (
    find_below,
    keep_nearest,
    nearest_products,
    products_below,
)
from tokendepth.measure.pair_costs import EPS, Blocks, PairCosts, ProductBlocks
from tokendepth.measure.sparse_graph import distinct_pairs

PANEL = 4096  # columns of a block
SMALL_PRODUCT = 1_000_000  # multiply-adds up to which a matrix product stays in its thread
NARROW = 64  # products of vectors no longer than this are computed in such small blocks
ROOM = 8  # pairs below its price that a row may report in one pass


@dataclass(frozen=True, kw_only=True)
class Broken:
    """What a pass over the reduced costs found."""

    floor: Float[np.ndarray, " row"]
    """The largest price of each row that breaks no pair, or its own where that breaks none."""
    rows: Int[np.ndarray, " pair"]
    """Rows of pairs that cost less than their prices, ascending."""
    columns: Int[np.ndarray, " pair"]
    costs: Float[np.ndarray, " pair"]


def near_pairs(
    costs: PairCosts,
    u: Float[np.ndarray, " row"],
    v: Float[np.ndarray, " column"],
    width: int,
    below: float = np.inf,
) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"], Float[np.ndarray, " pair"]]:
    """The pairs with the smallest reduced costs of each row and of each column.

    Told apart in float32, which is enough for a choice.

    Args:
        costs: of all pairs.
        u: prices of rows, by which the rows near a column are told.
        v: prices of columns.
        width: pairs a row and a column; all pairs where there are no more columns or rows.
        below: only reduced costs below it.

    Returns:
        Rows, ascending, columns, and exact costs.
    """
    num_rows, num_columns = costs.shape
    by_row = costs.prepare(v, rough=True)
    near, columns = _nearest(by_row, below - (by_row.base - u), num_columns, width)
    by_column = costs.turned().prepare(u, rough=True)
    values, rows = _nearest(by_column, below - (by_column.base - v), num_rows, width)
    row_fill, column_fill = (np.isfinite(each).sum(axis=1) for each in (near, values))
    tail, head = distinct_pairs(columns, row_fill, rows, column_fill)
    exact = costs.of(tail, head)
    if below == np.inf:
        return tail, head, exact
    real = _breaks(exact, u[tail], v[head])
    return tail[real], head[real], exact[real]


def _nearest(
    blocks: Blocks, limit: Float[np.ndarray, " row"], num_columns: int, width: int
) -> tuple[Float[np.ndarray, "row near"], Int[np.ndarray, "row near"]]:
    """The smallest entries of each row below its limit, ascending, and their columns."""
    below = limit.astype(np.float32)
    near = np.full((len(limit), min(width, num_columns)), np.inf, np.float32)
    columns = np.zeros(near.shape, np.int64)

    def search(part: np.ndarray) -> None:
        if isinstance(blocks, ProductBlocks) and blocks.width <= NARROW:
            here = slice(part[0], part[-1] + 1)
            nearest_products(
                blocks.left[here], blocks.right, PANEL, _height(blocks, num_columns), below[here],
                near[here], columns[here],
            )  # fmt: skip
            return
        for begin, column, block in _tiles(blocks, part, num_columns):
            here = slice(part[begin], part[begin] + len(block))
            keep_nearest(block, column, below[here], near[here], columns[here])

    _in_parts(blocks, np.arange(len(limit)), search)
    return near, columns


def broken_pairs(
    costs: PairCosts,
    u: Float[np.ndarray, " row"],
    v: Float[np.ndarray, " column"],
    asked: Int[np.ndarray, " some"],
    *,
    certain: bool = False,
) -> Broken:
    """Look at every pair of the asked rows for reduced costs below zero.

    Entries near zero are computed again exactly, so that the floors hold to the last bits.

    Args:
        costs: of all pairs.
        u: prices of rows.
        v: prices of columns.
        asked: ascending.
        certain: also where a row breaks more pairs than it can report, which costs a pass over the
            row in exact arithmetic; without it such a floor is minus infinity.
    """
    found = _look(costs, u, v, asked, rough=costs.cheap_when_rough)
    if costs.cheap_when_rough:
        again = np.flatnonzero(found.crowded if certain else found.crowded & (found.broken == 0))
        found = found.with_rows(again, _look(costs, u, v, asked[again], rough=False))
    lowest = found.lowest
    unsure = found.crowded & (found.broken > 0) & (not certain)
    lowest[unsure] = -np.inf
    for place in np.flatnonzero(found.crowded & ~unsure):
        row = np.full(costs.shape[1], asked[place])
        least = costs.of(row, np.arange(costs.shape[1])) - v - u[asked[place]]
        lowest[place] = min(0.0, least.min())
    rows, columns = asked[found.places], found.columns
    return Broken(floor=u[asked] + lowest, rows=rows, columns=columns, costs=found.costs)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What one pass over some rows has shown."""

    lowest: Float[np.ndarray, " some"]
    """The least reduced cost that was found in each row; 0 if none lies below."""
    crowded: Bool[np.ndarray, " some"]
    """Rows with more entries near or below zero than are told apart."""
    broken: Int[np.ndarray, " some"]
    """How many pairs of each row break its price."""
    places: Int[np.ndarray, " pair"]
    """Those pairs' places among the rows, ascending, columns and exact costs."""
    columns: Int[np.ndarray, " pair"]
    costs: Float[np.ndarray, " pair"]

    def with_rows(self, at: Int[np.ndarray, " part"], other: "_Look") -> "_Look":
        """Some rows replaced by what another pass has shown."""
        if len(at) == 0:
            return self
        told = {name: getattr(self, name).copy() for name in ("lowest", "crowded", "broken")}
        for name, values in told.items():
            values[at] = getattr(other, name)
        kept = ~np.isin(self.places, at)
        places = np.concatenate([self.places[kept], at[other.places]])
        order = np.argsort(places, kind="stable")
        return _Look(
            **told,
            places=places[order],
            columns=np.concatenate([self.columns[kept], other.columns])[order],
            costs=np.concatenate([self.costs[kept], other.costs])[order],
        )


def _look(
    costs: PairCosts, u: np.ndarray, v: np.ndarray, asked: np.ndarray, *, rough: bool
) -> _Look:
    """One pass: entries within the error of the pass are computed again exactly."""
    blocks = costs.prepare(v, rough=rough)
    bound = np.nextafter((u - blocks.base + blocks.error)[asked].astype(blocks.dtype), np.inf)
    values = np.full((len(asked), min(ROOM, costs.shape[1])), np.inf, blocks.dtype)
    where = np.zeros(values.shape, np.int64)
    count = np.zeros(len(asked), np.int64)

    def search(part: np.ndarray) -> None:
        if isinstance(blocks, ProductBlocks) and blocks.width <= NARROW:
            here = slice(part[0], part[-1] + 1)
            products_below(
                blocks.left[asked[here]], blocks.right, PANEL, _height(blocks, costs.shape[1]),
                bound[here], values[here], where[here], count[here],
            )  # fmt: skip
            return
        for begin, column, block in _tiles(blocks, asked[part], costs.shape[1]):
            here = slice(part[begin], part[begin] + len(block))
            find_below(block, column, bound[here], values[here], where[here], count[here])

    _in_parts(blocks, np.arange(len(asked)), search)
    places, rank = np.nonzero(np.isfinite(values))
    rows, columns = asked[places], where[places, rank]
    exact = costs.of(rows, columns)
    lowest = np.zeros(len(asked))
    np.minimum.at(lowest, places, exact - u[rows] - v[columns])
    broken = _breaks(exact, u[rows], v[columns])
    return _Look(
        lowest=lowest,
        crowded=count > values.shape[1],
        broken=np.bincount(places[broken], minlength=len(asked)),
        places=places[broken],
        columns=columns[broken],
        costs=exact[broken],
    )


def _breaks(exact: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Which pairs cost less than their prices by more than rounding."""
    return exact - u - v < -8 * EPS * (np.abs(exact) + np.abs(u) + np.abs(v))


def _tiles(
    blocks: Blocks, rows: np.ndarray, num_columns: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Blocks of entries in one buffer that is used again.

    Yields:
        Where in `rows` the block begins, its first column, and its entries.
    """
    width, height = min(num_columns, PANEL), _height(blocks, num_columns)
    room = np.empty((min(height, len(rows)), width), blocks.dtype)
    for column in range(0, num_columns, width):
        columns = slice(column, min(column + width, num_columns))
        for begin in range(0, len(rows), height):
            yield begin, column, blocks.fill(rows[begin : begin + height], columns, room)


def _height(blocks: Blocks, num_columns: int) -> int:
    """Rows of a block."""
    if blocks.width > NARROW:
        return 256
    return max(1, SMALL_PRODUCT // (min(num_columns, PANEL) * blocks.width))


def _in_parts(blocks: Blocks, numbers: np.ndarray, work: Callable[[np.ndarray], Any]) -> list[Any]:
    """Work on equal parts of the numbers, one a thread."""
    threads = torch.get_num_threads() if blocks.width <= NARROW else 1
    if threads == 1 or len(numbers) < 512:
        return [work(numbers)] if len(numbers) else []
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, np.array_split(numbers, threads)))
