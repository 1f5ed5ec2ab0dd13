"""Passes over all pairs of an assignment, in blocks and in as many threads as torch may use."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from tokendepth.measure.candidates import find_below, keep_nearest
from tokendepth.measure.pair_costs import EPS, Blocks, PairCosts
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
    blocks = costs.prepare(v, rough=True)
    shift = (blocks.base - u).astype(np.float32)
    row_limit = np.float32(below) - shift
    near = np.full((num_rows, min(width, num_columns)), np.inf, np.float32)
    columns = np.zeros(near.shape, np.int64)

    def search(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        limit = np.full(num_columns, below, np.float32)
        values = np.full((num_columns, min(width, num_rows)), np.inf, np.float32)
        rows = np.zeros(values.shape, np.int64)
        for begin, column, block in _tiles(blocks, part, num_columns):
            keep_nearest(
                block, part[begin], column, shift, row_limit, near, columns, limit, values, rows
            )
        return values, rows

    found = _in_parts(blocks, np.arange(num_rows), search)
    values, rows = _smallest(found, min(width, num_rows))
    row_fill, column_fill = (np.isfinite(each).sum(axis=1) for each in (near, values))
    tail, head = distinct_pairs(columns, row_fill, rows, column_fill)
    exact = costs.of(tail, head)
    if below == np.inf:
        return tail, head, exact
    real = _breaks(exact, u[tail], v[head])
    return tail[real], head[real], exact[real]


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
    blocks = costs.prepare(v, rough=False)
    bound = (u - blocks.base + blocks.error)[asked]
    values = np.full((len(asked), min(ROOM, costs.shape[1])), np.inf)
    where = np.zeros(values.shape, np.int64)
    count = np.zeros(len(asked), np.int64)

    def search(part: np.ndarray) -> None:
        for begin, column, block in _tiles(blocks, asked[part], costs.shape[1]):
            here = part[begin : begin + len(block)]
            here = slice(here[0], here[-1] + 1)
            find_below(block, column, bound[here], values[here], where[here], count[here])

    _in_parts(blocks, np.arange(len(asked)), search)
    at, rank = np.nonzero(np.isfinite(values))
    rows, columns = asked[at], where[at, rank]
    exact = costs.of(rows, columns)
    reduced = exact - u[rows] - v[columns]
    lowest = np.zeros(len(asked))
    np.minimum.at(lowest, at, reduced)
    broken = _breaks(exact, u[rows], v[columns])
    crowded = count > values.shape[1]
    if not certain:
        unsure = crowded & (np.bincount(at[broken], minlength=len(asked)) > 0)
        lowest[unsure] = -np.inf
        crowded &= ~unsure
    for place in np.flatnonzero(crowded):
        row = np.full(costs.shape[1], asked[place])
        least = costs.of(row, np.arange(costs.shape[1])) - v - u[asked[place]]
        lowest[place] = min(0.0, least.min())
    return Broken(
        floor=u[asked] + lowest, rows=rows[broken], columns=columns[broken], costs=exact[broken]
    )


def _breaks(exact: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Which pairs cost less than their prices by more than rounding."""
    return exact - u - v < -8 * EPS * (np.abs(exact) + np.abs(u) + np.abs(v))


def _smallest(
    lists: list[tuple[np.ndarray, np.ndarray]], width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Join the lists of several threads into one of the `width` smallest, ascending."""
    values = np.concatenate([values for values, _ in lists], axis=1)
    numbers = np.concatenate([numbers for _, numbers in lists], axis=1)
    if len(lists) > 1:
        order = np.argsort(values, axis=1)[:, :width]
        values = np.take_along_axis(values, order, axis=1)
        numbers = np.take_along_axis(numbers, order, axis=1)
    return values, numbers


def _tiles(
    blocks: Blocks, rows: np.ndarray, num_columns: int
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Blocks of entries in one buffer that is used again.

    Yields:
        Where in `rows` the block begins, its first column, and its entries.
    """
    width = min(num_columns, PANEL)
    narrow = blocks.width <= NARROW
    height = max(1, SMALL_PRODUCT // (width * blocks.width)) if narrow else 256
    room = np.empty((min(height, len(rows)), width), blocks.dtype)
    for column in range(0, num_columns, width):
        columns = slice(column, min(column + width, num_columns))
        for begin in range(0, len(rows), height):
            yield begin, column, blocks.fill(rows[begin : begin + height], columns, room)


def _in_parts(blocks: Blocks, numbers: np.ndarray, work: Callable[[np.ndarray], Any]) -> list[Any]:
    """Work on equal parts of the numbers, one a thread."""
    threads = torch.get_num_threads() if blocks.width <= NARROW else 1
    if threads == 1 or len(numbers) < 512:
        return [work(numbers)] if len(numbers) else []
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, np.array_split(numbers, threads)))
