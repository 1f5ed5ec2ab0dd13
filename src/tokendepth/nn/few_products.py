"""Products for few rows: every weight is read once, so the time is that of the memory.

Weights are read as they lie, (out, in). Rows come padded to one, or to a multiple of `TILE`.

Compiled kernels are kept on disk under the stamp of the file that holds them: after a change here,
touch `few_rows.py` too, or it goes on with what it had inlined before.
"""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba import config, get_num_threads, njit, prange, set_num_threads, types
from numba.core import cgutils
from numba.extending import intrinsic

from tokendepth.nn.levels import GROUP

TILE = 4
"""Rows that share one pass over a pair of weight rows."""
AHEAD = 2
"""Weight rows from the one in work to the one that is asked for."""
LINE = 16
"""Floats in a line of the processor's cache."""


def padding(count: int) -> int:
    """Rows to add to so many."""
    return 0 if count == 1 else -count % TILE


def use_threads(count: int) -> None:
    """Run the kernels on so many threads, or as many as there are."""
    count = min(count, config.NUMBA_NUM_THREADS)  # pyright: ignore[reportAttributeAccessIssue]
    if get_num_threads() != count:
        set_num_threads(count)


@intrinsic
@no_type_check
def _prefetch(typing, values, index):
    """Ask for values[index] to be brought into the second cache; it need not lie in the array."""
    signature = types.void(values, index)

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = cgutils.get_item_pointer(
            context, builder, signature.args[0], array, [arguments[1]], wraparound=False
        )
        word, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        reading, second_cache, data = word(0), word(2), word(1)
        builder.call(prefetch, [builder.bitcast(place, pointer), reading, second_cache, data])
        return context.get_dummy_value()

    return signature, generate


@njit(nogil=True, cache=True)
@no_type_check
def ask_ahead(first, second):
    """Bring in the weight rows that come `AHEAD` after these.

    The processor's own guesses stop at the end of a page, and a row is half of one.
    """
    for k in range(0, first.shape[0], LINE):
        _prefetch(first, AHEAD * first.shape[0] + k)
        _prefetch(second, AHEAD * first.shape[0] + k)


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def pair_products(first, second, rows, at):
    """Products of two weight rows with row `at`."""
    one = two = np.float32(0)
    for k in range(first.shape[0]):
        x = rows[at, k]
        one += first[k] * x
        two += second[k] * x
    return one, two


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def tile_products(first, second, rows, at):
    """Products of two weight rows with the four rows from `at` on."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
    for k in range(first.shape[0]):
        u, v = first[k], second[k]
        a0 += u * rows[at, k]
        a1 += u * rows[at + 1, k]
        a2 += u * rows[at + 2, k]
        a3 += u * rows[at + 3, k]
        b0 += v * rows[at, k]
        b1 += v * rows[at + 1, k]
        b2 += v * rows[at + 2, k]
        b3 += v * rows[at + 3, k]
    return (a0, a1, a2, a3), (b0, b1, b2, b3)


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def outputs(rows, weight, pair, out):
    """One pair of neighbouring outputs."""
    j = 2 * pair
    ask_ahead(weight[j], weight[j + 1])
    if rows.shape[0] == 1:
        out[0, j], out[0, j + 1] = pair_products(weight[j], weight[j + 1], rows, 0)
        return
    for at in range(0, rows.shape[0], TILE):
        ones, twos = tile_products(weight[j], weight[j + 1], rows, at)
        for i in range(TILE):
            out[at + i, j], out[at + i, j + 1] = ones[i], twos[i]


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def product(rows, weight, out):
    """Write rows @ weight.T into `out`.

    Args:
        rows: (row, dim), one or whole tiles.
        weight: (out, dim), an even number of outputs.
        out: (row, out), written.
    """
    for pair in prange(weight.shape[0] // 2):
        outputs(rows, weight, pair, out)


@intrinsic
@no_type_check
def _dot_levels(typing, levels, scales, row):
    """Sum over k of levels[k] * scales[k // GROUP] * row[k], GROUP products at a time.

    Written out, since a loop over bytes with a scale between is not made into vectors.
    """
    signature = types.float32(levels, scales, row)

    def generate(context, builder, signature, arguments):
        number, word = ir.FloatType(), context.get_value_type(types.intp)
        floats, bytes_ = ir.VectorType(number, GROUP), ir.VectorType(ir.IntType(8), GROUP)
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        ]

        def place(which, index):
            kind, array = signature.args[which], arrays[which]
            return cgutils.get_item_pointer(
                context, builder, kind, array, [index], wraparound=False
            )

        total = cgutils.alloca_once_value(builder, ir.Constant(floats, [0.0] * GROUP))
        none = ir.Constant(floats, ir.Undefined)
        first = ir.Constant(ir.VectorType(ir.IntType(32), GROUP), [0] * GROUP)
        with cgutils.for_range(builder, arrays[1].nitems) as loop:
            at = builder.mul(loop.index, word(GROUP))
            level = builder.load(builder.bitcast(place(0, at), bytes_.as_pointer()), align=1)
            inputs = builder.load(builder.bitcast(place(2, at), floats.as_pointer()), align=4)
            scale = builder.load(place(1, loop.index))
            scale = builder.insert_element(none, scale, ir.IntType(32)(0))
            scale = builder.shuffle_vector(scale, none, first)
            weight = builder.fmul(builder.sitofp(level, floats), scale)
            made = builder.fmul(weight, inputs, flags=("fast",))
            builder.store(builder.fadd(builder.load(total), made, flags=("fast",)), total)
        kind = ir.FunctionType(number, [number, floats])
        name = f"llvm.vector.reduce.fadd.v{GROUP}f32"
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(reduce, [number(0.0), builder.load(total)], fastmath=("fast",))

    return signature, generate


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def level_product(rows, levels, scales, out):
    """`product` of a matrix that is given as levels and the scales of their groups.

    Args:
        rows: (row, dim).
        levels: (out, dim), bytes.
        scales: (out, dim / GROUP).
        out: (row, out), written.
    """
    for j in prange(levels.shape[0]):
        for i in range(rows.shape[0]):
            out[i, j] = _dot_levels(levels[j], scales[j], rows[i])


def compile_all() -> None:
    """Run both products once on next to nothing."""
    state, square = np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32)
    product(state, square, np.zeros((1, 2), np.float32))
    row, levels = np.zeros((1, GROUP), np.float32), np.zeros((1, GROUP), np.int8)
    level_product(row, levels, state[:, :1].copy(), np.zeros((1, 1), np.float32))
