"""The pairs that an assignment may use, row by row, and how new ones join them."""

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from jaxtyping import Float, Int
from numba import njit


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Arcs by row: those of row i are `start[i]` to `start[i + 1] - 1`, no column twice."""

    start: Int[np.ndarray, " places"]
    head: Int[np.ndarray, " arcs"]
    """Column of each arc."""
    cost: Float[np.ndarray, " arcs"]


@njit(cache=True, nogil=True)
@no_type_check
def distinct_pairs(row_columns, row_fill, column_rows, column_fill):
    """Pairs of lists by row and of lists by column, each once.

    Args:
        row_columns: columns near each row.
        row_fill: how many of them count, from the front.
        column_rows: rows near each column.
        column_fill: how many of them count.

    Returns:
        Rows, ascending, and columns of the pairs.
    """
    num_rows, num_columns = len(row_columns), len(column_rows)
    place = np.zeros(num_rows + 1, np.int64)
    for row in range(num_rows):
        place[row + 1] += row_fill[row]
    for column in range(num_columns):
        for at in range(column_fill[column]):
            place[column_rows[column, at] + 1] += 1
    place = np.cumsum(place)
    loose = np.empty(place[-1], np.int64)
    filled = place[:-1].copy()
    for row in range(num_rows):
        for at in range(row_fill[row]):
            loose[filled[row]] = row_columns[row, at]
            filled[row] += 1
    for column in range(num_columns):
        for at in range(column_fill[column]):
            row = column_rows[column, at]
            loose[filled[row]] = column
            filled[row] += 1
    tail, head = np.empty(len(loose), np.int64), np.empty(len(loose), np.int64)
    stamp = np.full(num_columns, -1, np.int64)
    size = 0
    for row in range(num_rows):
        for at in range(place[row], place[row + 1]):
            if stamp[loose[at]] != row:
                stamp[loose[at]] = row
                tail[size], head[size] = row, loose[at]
                size += 1
    return tail[:size].copy(), head[:size].copy()


def graph_of(
    num_rows: int,
    rows: Int[np.ndarray, " arcs"],
    columns: Int[np.ndarray, " arcs"],
    costs: Float[np.ndarray, " arcs"],
) -> Graph:
    """A graph of arcs that are ordered by row, none of them twice."""
    start = np.searchsorted(rows, np.arange(num_rows + 1))
    return Graph(start=start, head=columns, cost=costs)


@njit(cache=True, nogil=True)
@no_type_check
def _merged(start, head, cost, rows, columns, costs):
    num_rows = len(start) - 1
    grown = np.zeros(num_rows + 1, np.int64)
    new_head = np.empty(len(head) + len(rows), np.int64)
    new_cost = np.empty(len(new_head))
    size, at = 0, 0
    for row in range(num_rows):
        for arc in range(start[row], start[row + 1]):
            new_head[size], new_cost[size] = head[arc], cost[arc]
            size += 1
        while at < len(rows) and rows[at] == row:
            known = False
            for arc in range(grown[row], size):
                known |= new_head[arc] == columns[at]
            if not known:
                new_head[size], new_cost[size] = columns[at], costs[at]
                size += 1
            at += 1
        grown[row + 1] = size
    return grown, new_head[:size].copy(), new_cost[:size].copy()


def merged(
    graph: Graph,
    rows: Int[np.ndarray, " new"],
    columns: Int[np.ndarray, " new"],
    costs: Float[np.ndarray, " new"],
) -> Graph:
    """The graph with more arcs; those it has already are left out.

    Args:
        graph: the arcs so far.
        rows: of the new arcs, ascending.
        columns: of the new arcs.
        costs: of the new arcs.
    """
    start, head, cost = _merged(graph.start, graph.head, graph.cost, rows, columns, costs)
    return Graph(start=start, head=head, cost=cost)
