"""Which pairs an assignment should look at: the nearest ones, and those that break its prices.

Both are found in passes over approximate costs, which a matrix product gives block by block; exact
costs are left to the caller. The loops are compiled on first use and kept on disk.
"""

from typing import no_type_check

import numpy as np
from numba import njit

STRIDE = 16  # pairs that are compared at once before any of them is looked at


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
def keep_nearest(block, offset, first, row_limit, row_values, row_columns, limit, values, rows):
    """Keep the smallest entries of every row of a block, and of every column so far.

    Args:
        block: approximate costs, less what is the same within a row.
        offset: what has to be added in each row to compare the entries of a column.
        first: number of the block's first row.
        row_limit: nothing at or above it is kept, one a row.
        row_values: the smallest entries of each row of the block, ascending; infinite at first.
        row_columns: where they are.
        limit: nothing at or above it is kept, one a column; lowered as lists fill.
        values: the smallest entries of each column, of this block and those before it.
        rows: where they are.
    """
    height, width = block.shape
    for row in range(height):
        shift = offset[row]
        bound = row_limit[row]
        for begin in range(0, width, STRIDE):
            end = min(begin + STRIDE, width)
            hit = False
            for column in range(begin, end):
                value = block[row, column]
                hit |= (value < bound) | (value + shift < limit[column])
            if not hit:
                continue
            for column in range(begin, end):
                value = block[row, column]
                if value < bound:
                    bound = min(bound, _insert(row_values[row], row_columns[row], value, column))
                value += shift
                if value < limit[column]:
                    last = _insert(values[column], rows[column], value, first + row)
                    limit[column] = min(limit[column], last)


@njit(cache=True, nogil=True)
@no_type_check
def find_below(block, bound, values, columns, count):
    """The smallest entries of each row that lie below the row's bound.

    Args:
        block: approximate reduced costs, less what is the same within a row.
        bound: one a row.
        values: room for the smallest of each row, ascending; infinite at first.
        columns: where they are.
        count: filled with how many entries of each row lie below its bound.
    """
    height, width = block.shape
    last = values.shape[1] - 1
    for row in range(height):
        least = bound[row]
        found = 0
        for begin in range(0, width, STRIDE):
            end = min(begin + STRIDE, width)
            hit = False
            for column in range(begin, end):
                hit |= block[row, column] < least
            if not hit:
                continue
            for column in range(begin, end):
                value = block[row, column]
                if value < least:
                    found += 1
                    if value < values[row, last]:
                        _insert(values[row], columns[row], value, column)
        count[row] = found
