"""Which pairs an assignment should look at: the nearest ones, and those that break its prices.

Both are found in passes over approximate costs, which a matrix product gives block by block; exact
costs are left to the caller. The loops are compiled on first use and kept on disk.
"""

from typing import no_type_check

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
def keep_nearest(
    block, first_row, first_column, offset, row_limit, row_values, row_columns, limit, values, rows
):
    """Keep the smallest entries of every row of a block, and of every column so far.

    Args:
        block: approximate costs, less what is the same within a row.
        first_row: number of the block's first row; the arrays below are of all rows and columns.
        first_column: number of its first column.
        offset: what has to be added in each row to compare the entries of a column.
        row_limit: nothing at or above it is kept, one a row; lowered as lists fill.
        row_values: the smallest entries of each row so far, ascending; infinite at first.
        row_columns: where they are.
        limit: nothing at or above it is kept, one a column; lowered as lists fill.
        values: the smallest entries of each column so far.
        rows: where they are.
    """
    height, width = block.shape
    columns = limit[first_column : first_column + width]
    for at in range(height):
        row = first_row + at
        shift = offset[row]
        bound = row_limit[row]
        for begin in range(0, width, STRIDE):
            end = min(begin + STRIDE, width)
            hit = False
            for column in range(begin, end):
                value = block[at, column]
                hit |= (value < bound) | (value + shift < columns[column])
            if not hit:
                continue
            for column in range(begin, end):
                value = block[at, column]
                number = first_column + column
                if value < bound:
                    bound = min(bound, _insert(row_values[row], row_columns[row], value, number))
                value += shift
                if value < columns[column]:
                    last = _insert(values[number], rows[number], value, row)
                    columns[column] = min(columns[column], last)
        row_limit[row] = bound


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
                        _insert(values[row], columns[row], value, first_column + column)
        count[row] += found
