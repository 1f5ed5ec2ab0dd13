"""Passes over all pairs of an assignment, in blocks and in as many threads as torch may use."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from tokendepth.measure.candidates import find_below, keep_nearest
from tokendepth.measure.pair_costs import EPS, Blocks, PairCosts
from tokendepth.measure.sparse_graph import Graph, distinct_arcs

BLOCK_BYTES = 2_000_000  # about one core's cache
ROOM = 8  # pairs below its price that a row may report in one pass
SAMPLE = 192  # rows, and columns, from which thresholds are guessed
SAMPLE_RANK = 4  # a pair is near when it is below the fourth smallest of the sample


@dataclass(frozen=True, kw_only=True)
class Broken:
    """What a pass over the reduced costs found."""

    floor: Float[np.ndarray, " row"]
    """The largest price of each row that breaks no pair, or its own where that breaks none."""
    rows: Int[np.ndarray, " pair"]
    """Rows of pairs that cost less than their prices, ascending."""
    columns: Int[np.ndarray, " pair"]
    costs: Float[np.ndarray, " pair"]


def nearest_pairs(
    costs: PairCosts,
    u: Float[np.ndarray, " row"],
    v: Float[np.ndarray, " column"],
    width: int,
) -> Graph:
    """The pairs with the smallest reduced costs of each row and of each column, about.

    Thresholds are guessed from a sample, so that a row may get fewer than `width`, never none.

    Args:
        costs: of all pairs.
        u: prices of rows, by which the rows near a column are told.
        v: prices of columns.
        width: pairs a row and a column; all pairs where there are no more columns or rows.
    """
    num_rows, num_columns = costs.shape
    blocks = costs.prepare(v, rough=True)
    shift = (blocks.base - u).astype(np.float32)
    row_limit, limit = _guess(blocks, shift, num_columns, width)
    near = np.full((num_rows, min(width, num_columns)), np.inf, np.float32)
    where = np.zeros(near.shape, np.int64)

    def search(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        bound = limit.copy()
        values = np.full((num_columns, min(width, num_rows)), np.inf, np.float32)
        rows = np.zeros(values.shape, np.int64)
        for some, block in _blocks(blocks, part, num_columns, np.float32):
            keep_nearest(
                block, shift[some], some[0], row_limit[some], near[some[0] : some[-1] + 1],
                where[some[0] : some[-1] + 1], bound, values, rows,
            )  # fmt: skip
        return values, rows

    found = _in_parts(np.arange(num_rows), search)
    values = np.concatenate([values for values, _ in found], axis=1)
    rows = np.concatenate([rows for _, rows in found], axis=1)
    if len(found) > 1:
        order = np.argpartition(values, min(width, num_rows) - 1, axis=1)[:, :width]
        values, rows = (np.take_along_axis(each, order, axis=1) for each in (values, rows))
        order = np.argsort(values, axis=1)
        values, rows = (np.take_along_axis(each, order, axis=1) for each in (values, rows))
    row_fill, column_fill = (np.isfinite(each).sum(axis=1) for each in (near, values))
    empty = np.flatnonzero(row_fill == 0)
    where[empty, 0], row_fill[empty] = empty % num_columns, 1
    start, tail, head = distinct_arcs(where, row_fill, rows, column_fill)
    return Graph(start=start, head=head, cost=costs.of(tail, head))


def broken_pairs(
    costs: PairCosts,
    u: Float[np.ndarray, " row"],
    v: Float[np.ndarray, " column"],
    asked: Int[np.ndarray, " some"],
) -> Broken:
    """Look at every pair of the asked rows for reduced costs below zero.

    Entries near zero are computed again exactly, so that the floors hold to the last bits.

    Args:
        costs: of all pairs.
        u: prices of rows.
        v: prices of columns.
        asked: ascending.
    """
    blocks = costs.prepare(v, rough=False)
    bound = u - blocks.base + blocks.error
    values = np.full((len(asked), min(ROOM, costs.shape[1])), np.inf)
    where = np.zeros(values.shape, np.int64)
    count = np.zeros(len(asked), np.int64)

    def search(part: np.ndarray) -> None:
        done = part[0]
        for some, block in _blocks(blocks, asked[part], costs.shape[1], np.float64):
            here = slice(done, done + len(some))
            find_below(block, bound[some], values[here], where[here], count[here])
            done += len(some)

    _in_parts(np.arange(len(asked)), search)
    at, rank = np.nonzero(np.isfinite(values))
    rows, columns = asked[at], where[at, rank]
    exact = costs.of(rows, columns)
    reduced = exact - u[rows] - v[columns]
    lowest = np.zeros(len(asked))
    np.minimum.at(lowest, at, reduced)
    broken = reduced < -8 * EPS * (np.abs(exact) + np.abs(u[rows]) + np.abs(v[columns]))
    crowded = count > values.shape[1]
    crowded[at[broken]] = False
    for place in np.flatnonzero(crowded):
        row = np.full(costs.shape[1], asked[place])
        least = costs.of(row, np.arange(costs.shape[1])) - v - u[asked[place]]
        lowest[place] = min(0.0, least.min())
    return Broken(
        floor=u[asked] + lowest, rows=rows[broken], columns=columns[broken], costs=exact[broken]
    )


def _guess(
    blocks: Blocks, shift: np.ndarray, num_columns: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds of rows and of columns; infinite where a sample would not pay."""
    num_rows = len(shift)
    row_limit = np.full(num_rows, np.inf, np.float32)
    limit = np.full(num_columns, np.inf, np.float32)
    if min(num_rows, num_columns) < 8 * SAMPLE:
        return row_limit, limit
    return row_limit, limit


def _blocks(blocks: Blocks, rows: np.ndarray, num_columns: int, dtype: type):
    """Pieces of the rows with their entries, in one buffer that is used again."""
    height = max(1, BLOCK_BYTES // (num_columns * np.dtype(dtype).itemsize))
    room = np.empty((min(height, len(rows)), num_columns), dtype)
    for begin in range(0, len(rows), height):
        some = rows[begin : begin + height]
        yield some, blocks.fill(some, room)


def _in_parts(numbers: np.ndarray, work: Callable[[np.ndarray], Any]) -> list[Any]:
    """Work on equal parts of the numbers, one a thread."""
    threads = torch.get_num_threads()
    if threads == 1 or len(numbers) < 512:
        return [work(numbers)] if len(numbers) else []
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, np.array_split(numbers, threads)))
