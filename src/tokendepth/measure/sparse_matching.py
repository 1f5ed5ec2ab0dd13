"""Minimum-cost matching on a sparse graph by shortest augmenting paths, with its duals.

The method of Jonker and Volgenant (1987, "A shortest augmenting path algorithm for dense and sparse
linear assignment problems"), in a form that can go on: prices of rows (`u`) and of columns (`v`)
come in, stay feasible (u_i + v_j <= c_ij on every arc, with equality on matched ones) and go out,
so that after new arcs only the rows they concern are matched again.

A graph is held row by row: the arcs of row i are `start[i]` to `start[i + 1] - 1`; `head` is the
column of an arc and `cost` its cost. `mate[i]` is the column of row i and `owner[j]` the row of
column j; -1 where there is none.
"""

from typing import no_type_check

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
@no_type_check
def bid(start, head, cost, v, step, limit):
    """Lower the prices of columns by an auction (Bertsekas, 1979), from no matching at all.

    A row without a column bids for its cheapest one: the price falls by the lead over the second
    cheapest plus `step`, and whoever had the column bids again. When every row has a column, the
    prices are within `step` a row of the best ones.

    Args:
        start: first arc of each row.
        head: column of each arc.
        cost: cost of each arc.
        v: prices of columns; lowered in place.
        step: above 0.
        limit: bids at most, since an auction without a full matching would never end.
    """
    num_rows = len(start) - 1
    owner = np.full(len(v), -1, np.int64)
    waiting = np.arange(num_rows - 1, -1, -1)
    size, bids = num_rows, 0
    while size > 0 and bids < limit:
        size -= 1
        bids += 1
        row = waiting[size]
        first, second, best = np.inf, np.inf, -1
        for arc in range(start[row], start[row + 1]):
            value = cost[arc] - v[head[arc]]
            if value < second:
                if value < first:
                    first, second, best = value, first, head[arc]
                else:
                    second = value
        v[best] -= step if second == np.inf else second - first + step
        if owner[best] >= 0:
            waiting[size] = owner[best]
            size += 1
        owner[best] = row
    return bids


@njit(cache=True, nogil=True)
@no_type_check
def take_cheapest(start, head, cost, u, v, mate, owner):
    """Give each row its cheapest column if nobody has it; prices of columns stay as they are.

    Clouds that nearly coincide are done after that, with prices as small as their distances.

    Returns:
        The rows that are still free.
    """
    num_rows = len(start) - 1
    waiting = np.empty(num_rows, np.int64)
    num_waiting = 0
    for row in range(num_rows):
        first, best = np.inf, -1
        for arc in range(start[row], start[row + 1]):
            value = cost[arc] - v[head[arc]]
            if value < first:
                first, best = value, head[arc]
        u[row] = first
        if owner[best] < 0:
            mate[row] = best
            owner[best] = row
        else:
            waiting[num_waiting] = row
            num_waiting += 1
    return waiting[:num_waiting].copy()


@njit(cache=True, nogil=True)
@no_type_check
def reduce_rows(start, head, cost, u, v, mate, owner, free):
    """Give each free row its cheapest column and lower that column's price as far as it goes.

    A row that loses its column is served at once, or in a later pass where nothing was lowered.
    The work is bounded: prices that differ by a rounding error could pass a column to and fro.

    Returns:
        The rows that are still free.
    """
    budget = 8 * len(free)
    queue = free.copy()
    waiting = np.empty(len(free) + budget, np.int64)
    num_waiting, at = 0, 0
    while at < len(queue):
        row = queue[at]
        at += 1
        first, second = np.inf, np.inf
        best, other = -1, -1
        for arc in range(start[row], start[row + 1]):
            column = head[arc]
            value = cost[arc] - v[column]
            if value < second:
                if value < first:
                    second, other = first, best
                    first, best = value, column
                else:
                    second, other = value, column
        lowered = v[best] - (second - first) if other >= 0 else v[best]
        strict = lowered < v[best]
        if strict:
            v[best] = lowered
            u[row] = second
        else:
            u[row] = first
            if owner[best] >= 0 and other >= 0 and second == first:
                best = other
        loser = owner[best]
        if loser >= 0 and not strict and second > first:
            # Lowering would be lost in rounding: leave the column to whoever has it.
            waiting[num_waiting] = row
            num_waiting += 1
            continue
        mate[row] = best
        owner[best] = row
        if loser >= 0:
            mate[loser] = -1
            if strict and budget > 0:
                budget -= 1
                at -= 1
                queue[at] = loser
            else:
                waiting[num_waiting] = loser
                num_waiting += 1
    return waiting[:num_waiting].copy()


@njit(cache=True, nogil=True)
@no_type_check
def _push(keys, items, size, key, item):
    """Put an item into a heap with four children a node; returns the new size."""
    at = size
    while at > 0:
        parent = (at - 1) >> 2
        if keys[parent] <= key:
            break
        keys[at] = keys[parent]
        items[at] = items[parent]
        at = parent
    keys[at] = key
    items[at] = item
    return size + 1


@njit(cache=True, nogil=True)
@no_type_check
def _pop(keys, items, size):
    """Remove the root, which the caller has read; returns the new size."""
    size -= 1
    key, item = keys[size], items[size]
    at = 0
    while True:
        child = 4 * at + 1
        if child >= size:
            break
        least = child
        for other in range(child + 1, min(child + 4, size)):
            if keys[other] < keys[least]:
                least = other
        if keys[least] >= key:
            break
        keys[at] = keys[least]
        items[at] = items[least]
        at = least
    keys[at] = key
    items[at] = item
    return size


@njit(cache=True, nogil=True)
@no_type_check
def _nearest(keys, items, size, distance):
    """Take the nearest column off the heap, past entries that a shorter way has made stale."""
    while size > 0:
        key, item = keys[0], items[0]
        size = _pop(keys, items, size)
        if key == distance[item]:
            return item, size
    return -1, size


@njit(cache=True, nogil=True)
@no_type_check
def _exchange(before, mate, owner, source, sink):
    """Give each row of a path the column after it, from its end back to its source."""
    column = sink
    while True:
        row = before[column]
        owner[column] = row
        following = mate[row]
        mate[row] = column
        if row == source:
            break
        column = following


@njit(cache=True, nogil=True)
@no_type_check
def augment(start, head, cost, u, v, mate, owner, free):
    """Match the free rows one by one along shortest paths of reduced costs.

    A search ends at the nearest free column; nothing farther is put on the heap. Prices change on
    what the search has settled, which keeps them feasible.

    Returns:
        The rows from which no free column can be reached; they stay free, prices unchanged.
    """
    num_columns = len(v)
    distance = np.empty(num_columns)
    before = np.empty(num_columns, np.int64)
    seen = np.full(num_columns, -1, np.int64)
    settled = np.empty(num_columns, np.int64)
    keys = np.empty(len(head) + 1)
    items = np.empty(len(head) + 1, np.int64)
    stuck = np.empty(len(free), np.int64)
    num_stuck = 0
    for turn in range(len(free)):
        source = free[turn]
        lowest = np.inf
        for arc in range(start[source], start[source + 1]):
            lowest = min(lowest, cost[arc] - v[head[arc]])
        u[source] = lowest
        size, num_settled, row, reached, sink, end = 0, 0, source, 0.0, -1, np.inf
        while True:
            for arc in range(start[row], start[row + 1]):
                column = head[arc]
                far = reached + max(cost[arc] - u[row] - v[column], 0.0)
                if far >= end or (seen[column] == turn and far >= distance[column]):
                    continue
                seen[column] = turn
                distance[column] = far
                before[column] = row
                if owner[column] < 0:
                    sink, end = column, far
                else:
                    size = _push(keys, items, size, far, column)
            column, size = _nearest(keys, items, size, distance)
            if column < 0 or distance[column] >= end:
                break
            reached = distance[column]
            settled[num_settled] = column
            num_settled += 1
            row = owner[column]
        if sink < 0:
            stuck[num_stuck] = source
            num_stuck += 1
            continue
        u[source] += end
        for at in range(num_settled):
            column = settled[at]
            u[owner[column]] += end - distance[column]
            v[column] -= end - distance[column]
        _exchange(before, mate, owner, source, sink)
    return stuck[:num_stuck].copy()
