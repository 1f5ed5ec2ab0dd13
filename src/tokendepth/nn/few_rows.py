"""Kernels for a block on few rows: what a plain decoding step runs on a processor.

For one to a dozen rows a product reads every weight once and does little with it, so the time is
that of the memory; between products, dozens of small operators cost more than their arithmetic.
Each kernel here is one half of a block in one call: norm, products and what lies between them.
Weights are read as they lie, (out, in). Rows come padded to one, or to a multiple of `TILE`.

The specification is the block itself, `depth.execute.dense`; tests hold them against each other.
"""

from typing import no_type_check

import numpy as np
from numba import config, get_num_threads, njit, prange, set_num_threads

TILE = 4
"""Rows that share one pass over a pair of weight rows."""


def padding(count: int) -> int:
    """Rows to add to so many."""
    return 0 if count == 1 else -count % TILE


def use_threads(count: int) -> None:
    """Run the kernels on so many threads, or as many as there are."""
    count = min(count, config.NUMBA_NUM_THREADS)  # pyright: ignore[reportAttributeAccessIssue]
    if get_num_threads() != count:
        set_num_threads(count)


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


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _outputs(rows, weight, pair, out):
    """One pair of neighbouring outputs."""
    j = 2 * pair
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


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def attention(
    state, rows, active, norm, epsilon, query, key, value, output, cosine, sine,
    keys, values, places, slots, positions, asked, scale,
):  # fmt: skip
    """The attention half: keys and values of some rows are stored, some of them get its update.

    Args:
        state: (row, dim), changed in place.
        rows: which of them are stored.
        active: which of those get the update, as places in `rows`; no query is made if none does.
        norm: gain of the attention norm.
        epsilon: of the norm.
        query: (head * head_dim, dim).
        key: (key_value_head * head_dim, dim).
        value: likewise.
        output: (dim, head * head_dim).
        cosine: (row, head_dim), of the stored rows.
        sine: likewise.
        keys: (batch, slot, key_value_head, head_dim), written.
        values: likewise.
        places: row of the batch, of each stored row.
        slots: slot, of each stored row.
        positions: (batch, slot), -1 for slots that hold nothing.
        asked: position of each stored row; its query sees slots up to it.
        scale: factor on query times key.
    """
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
def feed_forward(state, rows, norm, epsilon, gate, up, down):
    """The gated half: state[rows] += down(silu(gate(x)) * up(x)) with x the normed rows.

    Args:
        state: (row, dim), changed in place.
        rows: which of them.
        norm: gain of the norm.
        epsilon: of the norm.
        gate: (inner, dim).
        up: likewise.
        down: (dim, inner).
    """
    normed = _normed(state, rows, norm, epsilon)
    inner = np.empty((len(normed), gate.shape[0]), np.float32)
    for j in prange(gate.shape[0]):
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
    gain, square, angle = np.ones(2, np.float32), np.zeros((2, 2), np.float32), state
    slots, epsilon = np.zeros((1, 1, 1, 2), np.float32), np.float32(1)
    attention(
        state, rows, rows, gain, epsilon, square, square, square, square, angle, angle, slots,
        slots.copy(), rows, rows, np.zeros((1, 1), np.int64), rows, epsilon,
    )  # fmt: skip
    feed_forward(state, rows, gain, epsilon, square, square, square)
    product(state, square, np.zeros((1, 2), np.float32))
