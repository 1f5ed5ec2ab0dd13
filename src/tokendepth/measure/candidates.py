"""Which pairs an assignment should look at: the nearest ones, and those that break its prices.

Both are found in passes over approximate costs, which a matrix product gives block by block; exact
costs are left to the caller. The loops are compiled on first use and kept on disk.
"""

from typing import no_type_check

import numpy as np
from numba import njit

LANES = 256  # columns of a row that stand side by side, each for every 256th one
GROUPS = 32  # of lanes
HALVINGS = 6  # in the search for a bound; more make it no closer to what matters


@njit(cache=True, nogil=True)
@no_type_check
def _insert(values, numbers, value, number):
    """Put a value into an ascending list in place of its last; returns the new last."""
    last = len(values) - 1
    at = last
    while at > 0 and values[at - 1] > value:
        values[at] = values[at - 1]
        numbers[at] = numbers[at - 1]
        at -= 1
    values[at] = value
    numbers[at] = number
    return values[last]


@njit(cache=True, nogil=True)
@no_type_check
def _lowest(line, lanes):
    """The least entry of each lane; no comparison waits for another. Returns how many lanes."""
    first = min(len(lanes), len(line))
    for lane in range(first):
        lanes[lane] = line[lane]
    for begin in range(first, len(line), first):
        for lane in range(min(first, len(line) - begin)):
            value = line[begin + lane]
            lanes[lane] = value if value < lanes[lane] else lanes[lane]
    return first


@njit(cache=True, nogil=True)
@no_type_check
def _enough(lanes, wanted):
    """A number that at least so many of the lanes do not exceed, and not many more."""
    if len(lanes) < LANES or wanted > GROUPS:
        return np.inf
    groups = lanes[:GROUPS].copy()
    for begin in range(GROUPS, LANES, GROUPS):
        for group in range(GROUPS):
            value = lanes[begin + group]
            groups[group] = value if value < groups[group] else groups[group]
    low, high = groups.min(), groups.max()
    for _ in range(HALVINGS):
        between = low + (high - low) / 2
        count = 0
        for group in range(GROUPS):
            count += groups[group] <= between
        if count >= wanted:
            high = between
        else:
            low = between
    return high


@njit(cache=True, nogil=True)
@no_type_check
def keep_nearest(block, first_column, limit, values, columns):
    """Keep the smallest entries of every row of a block.

    A row is read once without a branch, for the least entry of each lane. What enough groups of
    lanes reach is a bound, and few lanes lie below it.

    Args:
        block: approximate costs, less what is the same within a row.
        first_column: number of its first column.
        limit: nothing at or above it is kept, one a row of the block.
        values: the smallest entries of each row so far, ascending; infinite at first.
        columns: where they are.
    """
    height, width = block.shape
    lanes = np.empty(LANES, block.dtype)
    low = np.empty(LANES + 1, np.int64)
    wanted = values.shape[1]
    for at in range(height):
        line, kept, numbers = block[at], values[at], columns[at]
        num_lanes = _lowest(line, lanes)
        bound = min(limit[at], kept[wanted - 1])
        highest = _enough(lanes[:num_lanes], wanted)
        num_low = 0
        for lane in range(num_lanes):
            low[num_low] = lane
            num_low += (lanes[lane] <= highest) & (lanes[lane] < bound)
        for lane in low[:num_low]:
            for column in range(lane, width, num_lanes):
                value = line[column]
                if value <= highest and value < bound:
                    last = _insert(kept, numbers, value, first_column + column)
                    bound = min(bound, last)


@njit(cache=True, nogil=True)
@no_type_check
def find_below(block, first_column, bound, values, columns, count):
    """The smallest entries of each row that lie below the row's bound.

    Args:
        block: approximate reduced costs, less what is the same within a row.
        first_column: number of the block's first column.
        bound: one a row.
        values: the smallest of each row so far, ascending; infinite at first.
        columns: where they are.
        count: how many entries of each row lie below its bound so far.
    """
    height, width = block.shape
    lanes = np.empty(LANES, block.dtype)
    last = values.shape[1] - 1
    for at in range(height):
        line, least = block[at], bound[at]
        num_lanes = _lowest(line, lanes)
        for lane in range(num_lanes):
            if not lanes[lane] < least:
                continue
            for column in range(lane, width, num_lanes):
                value = line[column]
                if value < least:
                    count[at] += 1
                    if value < values[at, last]:
                        _insert(values[at], columns[at], value, first_column + column)


@njit(cache=True, nogil=True)
@no_type_check
def nearest_products(left, right, panel, height, limit, values, columns):
    """`keep_nearest` on all of left @ right, block by block.

    Args:
        left: (row, dim).
        right: (dim, column).
        panel: columns of a block.
        height: rows of a block.
        limit: as for `keep_nearest`.
        values: likewise.
        columns: likewise.
    """
    for first in range(0, right.shape[1], panel):
        part = np.ascontiguousarray(right[:, first : first + panel])
        room = np.empty((height, part.shape[1]), left.dtype)
        for at in range(0, len(left), height):
            end = min(at + height, len(left))
            block = room[: end - at]
            np.dot(left[at:end], part, block)
            keep_nearest(block, first, limit[at:end], values[at:end], columns[at:end])


@njit(cache=True, nogil=True)
@no_type_check
def products_below(left, right, panel, height, bound, values, columns, count):
    """`find_below` on all of left @ right, block by block.

    Args:
        left: (row, dim).
        right: (dim, column).
        panel: columns of a block.
        height: rows of a block.
        bound: as for `find_below`.
        values: likewise.
        columns: likewise.
        count: likewise.
    """
    for first in range(0, right.shape[1], panel):
        part = np.ascontiguousarray(right[:, first : first + panel])
        room = np.empty((height, part.shape[1]), left.dtype)
        for at in range(0, len(left), height):
            end = min(at + height, len(left))
            block = room[: end - at]
            np.dot(left[at:end], part, block)
            here = slice(at, end)
            find_below(block, first, bound[here], values[here], columns[here], count[here])
