"""Kernels for a block on few rows: what a plain decoding step runs on a processor.

For one to a dozen rows a product reads every weight once and does little with it, so the time is
that of the memory; between products, dozens of small operators cost more than their arithmetic.
A block is one call here: norms, products and what lies between them.
Weights are read as they lie, (out, in). Rows come padded to one, or to a multiple of `TILE`.

The specification is the block itself, `depth.execute.dense`; tests hold them against each other.
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
def _ask_ahead(first, second):
    """Bring in the weight rows that come `AHEAD` after these.

    The processor's own guesses stop at the end of a page, and a row is half of one.
    """
    for k in range(0, first.shape[0], LINE):
        _prefetch(first, AHEAD * first.shape[0] + k)
        _prefetch(second, AHEAD * first.shape[0] + k)


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _pair(first, second, rows, at):
    """Products of two weight rows with row `at`."""
    one = two = np.float32(0)
    for k in range(first.shape[0]):
        x = rows[at, k]
        one += first[k] * x
        two += second[k] * x
    return one, two


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _tile(first, second, rows, at):
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
def _normed(state, rows, gain, epsilon):
    """Root-mean-square norm of the given rows, padded with zeros to whole tiles."""
    count, width = len(rows), state.shape[1]
    size = count if count < 2 else (count + TILE - 1) // TILE * TILE
    normed = np.zeros((size, width), np.float32)
    for i in range(count):
        total = np.float32(0)
        for k in range(width):
            total += state[rows[i], k] * state[rows[i], k]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + epsilon)
        for k in range(width):
            normed[i, k] = state[rows[i], k] * scale * gain[k]
    return normed


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
        _outputs(rows, weight, pair, out)


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


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _outputs(rows, weight, pair, out):
    """One pair of neighbouring outputs."""
    j = 2 * pair
    _ask_ahead(weight[j], weight[j + 1])
    if rows.shape[0] == 1:
        out[0, j], out[0, j + 1] = _pair(weight[j], weight[j + 1], rows, 0)
        return
    for at in range(0, rows.shape[0], TILE):
        ones, twos = _tile(weight[j], weight[j + 1], rows, at)
        for i in range(TILE):
            out[at + i, j], out[at + i, j + 1] = ones[i], twos[i]


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _turned(rows, weight, pair, cosine, sine, out):
    """One pair of outputs, (row, head, head_dim), that rotary angles turn against each other."""
    half = out.shape[2] // 2
    head, d = pair // half, pair % half
    j = 2 * head * half + d
    _ask_ahead(weight[j], weight[j + half])
    if rows.shape[0] == 1:
        one, two = _pair(weight[j], weight[j + half], rows, 0)
        out[0, head, d] = one * cosine[0, d] + two * sine[0, d]
        out[0, head, d + half] = two * cosine[0, d + half] + one * sine[0, d + half]
        return
    for at in range(0, rows.shape[0], TILE):
        ones, twos = _tile(weight[j], weight[j + half], rows, at)
        for i in range(TILE):
            r = at + i
            if r < len(cosine):
                c, s = cosine[r], sine[r]
                out[r, head, d] = ones[i] * c[d] + twos[i] * s[d]
                out[r, head, d + half] = twos[i] * c[d + half] + ones[i] * s[d + half]


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def _project(normed, query, key, value, cosine, sine, queries, turned, plain):
    """Queries, keys and values in one parallel region."""
    num_queries, num_keys = query.shape[0] // 2, key.shape[0] // 2
    for pair in prange(num_queries + num_keys + value.shape[0] // 2):
        if pair < num_queries:
            _turned(normed, query, pair, cosine, sine, queries)
        elif pair < num_queries + num_keys:
            _turned(normed, key, pair - num_queries, cosine, sine, turned)
        else:
            _outputs(normed, value, pair - num_queries - num_keys, plain)


@njit(nogil=True, cache=True)
@no_type_check
def block(
    state, attention_gain, attention_epsilon, query, key, value, output, scale,
    gain, epsilon, gate, up, down,
    rows, places, asked, cosine, sine, slots, positions, active, keys, values,
):  # fmt: skip
    """A block: keys and values of some rows are stored, some of them get its updates.

    Args:
        state: (row, dim), changed in place.
        attention_gain: of the attention norm.
        attention_epsilon: likewise.
        query: (head * head_dim, dim).
        key: (key_value_head * head_dim, dim).
        value: likewise.
        output: (dim, head * head_dim).
        scale: factor on query times key.
        gain: of the feed-forward norm.
        epsilon: likewise.
        gate: (inner, dim).
        up: likewise.
        down: (dim, inner).
        rows: which rows of the state are stored.
        places: row of the batch, of each of them.
        asked: position of each; its query sees slots up to it.
        cosine: (stored row, head_dim).
        sine: likewise, negative for the first half of a head.
        slots: where each is stored.
        positions: (batch, slot), -1 for slots that hold nothing.
        active: which of the stored rows get the updates, as places in `rows`.
        keys: (batch, slot, key_value_head, head_dim), written.
        values: likewise.
    """
    _attention(
        state, rows, active, attention_gain, attention_epsilon, query, key, value, output,
        cosine, sine, keys, values, places, slots, positions, asked, scale,
    )  # fmt: skip
    if len(active):
        _feed_forward(state, rows[active], gain, epsilon, gate, up, down)


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def _attention(
    state, rows, active, norm, epsilon, query, key, value, output, cosine, sine,
    keys, values, places, slots, positions, asked, scale,
):  # fmt: skip
    """The attention half, as `block` has it; no query is made if no row gets its update."""
    normed = _normed(state, rows, norm, epsilon)
    size, groups = keys.shape[3], keys.shape[2]
    heads = query.shape[0] // size
    queries = np.empty((len(normed), heads, size), np.float32)
    turned = np.empty((len(normed), groups, size), np.float32)
    plain = np.empty((len(normed), groups * size), np.float32)
    asking = query if len(active) else query[:0]
    _project(normed, asking, key, value, cosine, sine, queries, turned, plain)
    for i in range(len(rows)):
        keys[places[i], slots[i]] = turned[i]
        values[places[i], slots[i]] = plain[i].reshape(groups, size)
    count = len(active)
    mixed = np.zeros((count if count < 2 else count + -count % TILE, heads * size), np.float32)
    for task in prange(count * heads):
        one, head = task // heads, task % heads
        i = active[one]
        _mix(
            queries[i, head], keys[places[i]], values[places[i]], positions[places[i]], asked[i],
            head * groups // heads, scale, mixed[one, head * size : (head + 1) * size],
        )  # fmt: skip
    if count:
        _add_product(mixed, output, state, rows[active])


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _mix(query, keys, values, positions, asked, head, scale, mixed):
    """One query of one head: a softmax over the slots it sees."""
    scores = np.empty(len(positions), np.float32)
    best = np.float32(-np.inf)
    for slot in range(len(positions)):
        scores[slot] = -np.inf
        if 0 <= positions[slot] <= asked:
            total = np.float32(0)
            for d in range(len(query)):
                total += query[d] * keys[slot, head, d]
            scores[slot] = total * scale
            best = max(best, scores[slot])
    whole = np.float32(0)
    for slot in range(len(positions)):
        if 0 <= positions[slot] <= asked:
            weight = np.exp(scores[slot] - best)
            whole += weight
            for d in range(len(query)):
                mixed[d] += weight * values[slot, head, d]
    if whole > 0:
        for d in range(len(query)):
            mixed[d] /= whole


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def _add_product(inner, weight, state, rows):
    """Add inner @ weight.T to the given rows of the state."""
    for half in prange(weight.shape[0] // 2):
        j = 2 * half
        _ask_ahead(weight[j], weight[j + 1])
        if inner.shape[0] == 1:
            one, two = _pair(weight[j], weight[j + 1], inner, 0)
            state[rows[0], j] += one
            state[rows[0], j + 1] += two
        else:
            for at in range(0, inner.shape[0], TILE):
                ones, twos = _tile(weight[j], weight[j + 1], inner, at)
                for i in range(TILE):
                    if at + i < len(rows):
                        state[rows[at + i], j] += ones[i]
                        state[rows[at + i], j + 1] += twos[i]


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def _feed_forward(state, rows, norm, epsilon, gate, up, down):
    """The gated half: state[rows] += down(silu(gate(x)) * up(x)) with x the normed rows."""
    normed = _normed(state, rows, norm, epsilon)
    inner = np.empty((len(normed), gate.shape[0]), np.float32)
    for j in prange(gate.shape[0]):
        _ask_ahead(gate[j], up[j])
        if normed.shape[0] == 1:
            one, two = _pair(gate[j], up[j], normed, 0)
            inner[0, j] = one / (np.float32(1) + np.exp(-one)) * two
        else:
            for at in range(0, normed.shape[0], TILE):
                ones, twos = _tile(gate[j], up[j], normed, at)
                for i in range(TILE):
                    inner[at + i, j] = ones[i] / (np.float32(1) + np.exp(-ones[i])) * twos[i]
    _add_product(inner, down, state, rows)


def compile_all() -> None:
    """Run every kernel once on next to nothing."""
    rows, state = np.zeros(1, np.int64), np.zeros((1, 2), np.float32)
    gain, square, one = np.ones(2, np.float32), np.zeros((2, 2), np.float32), np.float32(1)
    slots = np.zeros((1, 1, 1, 2), np.float32)
    block(
        state, gain, one, square, square, square, square, one, gain, one, square, square, square,
        rows, rows, rows, state, state, rows, np.zeros((1, 1), np.int64), rows, slots, slots.copy(),
    )  # fmt: skip
    product(state, square, np.zeros((1, 2), np.float32))
    row, levels = np.zeros((1, GROUP), np.float32), np.zeros((1, GROUP), np.int8)
    level_product(row, levels, state[:, :1].copy(), np.zeros((1, 1), np.float32))
