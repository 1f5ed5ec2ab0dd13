"""Kernels for blocks on few rows: what a plain decoding step runs on a processor.

For one to a dozen rows a product reads every weight once and does little with it, so the time is
that of the memory; between products, dozens of small operators cost more than their arithmetic.
All blocks that share a decision are one call here: norms, products and what lies between them.

The specification is the block itself, `depth.execute.dense`; tests hold them against each other.
"""

from typing import no_type_check

import numpy as np
from numba import carray, njit, prange, types  # pyright: ignore[reportPrivateImportUsage]
from numba.extending import intrinsic

from tokendepth.nn.few_products import TILE, ask_ahead, outputs, pair_products, tile_products


@njit(nogil=True, cache=True)
@no_type_check
def _padded(count):
    """So many rows with those that make up whole tiles."""
    return 1 if count == 1 else count + -count % TILE


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _normed(state, rows, gain, epsilon):
    """Root-mean-square norm of the given rows, padded with zeros to whole tiles."""
    count, width = len(rows), state.shape[1]
    normed = np.zeros((_padded(count), width), np.float32)
    for i in range(count):
        total = np.float32(0)
        for k in range(width):
            total += state[rows[i], k] * state[rows[i], k]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + epsilon)
        for k in range(width):
            normed[i, k] = state[rows[i], k] * scale * gain[k]
    return normed


@njit(fastmath=True, nogil=True, cache=True)
@no_type_check
def _turned(rows, weight, pair, cosine, sine, out):
    """One pair of outputs, (row, head, head_dim), that rotary angles turn against each other."""
    half = out.shape[2] // 2
    head, d = pair // half, pair % half
    j = 2 * head * half + d
    ask_ahead(weight[j], weight[j + half])
    if rows.shape[0] == 1:
        one, two = pair_products(weight[j], weight[j + half], rows, 0)
        out[0, head, d] = one * cosine[0, d] + two * sine[0, d]
        out[0, head, d + half] = two * cosine[0, d + half] + one * sine[0, d + half]
        return
    for at in range(0, rows.shape[0], TILE):
        ones, twos = tile_products(weight[j], weight[j + half], rows, at)
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
            outputs(normed, value, pair - num_queries - num_keys, plain)


@intrinsic
@no_type_check
def _floats(typing, address):
    """An address as a pointer to 32-bit floats."""
    signature = types.CPointer(types.float32)(types.int64)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@njit(nogil=True, cache=True)
@no_type_check
def blocks(
    state, weights, sizes, numbers, rows, batch, asked, cosine, sine, slots, positions, active,
    stores,
):  # fmt: skip
    """Blocks one after another: each stores keys and values of some rows and updates some of them.

    A block's own arrays are given as addresses, since handing them over one by one would cost as
    much as some of the products. Whoever calls keeps them alive.

    Args:
        state: (row, dim), changed in place.
        weights: (block, 9), addresses: the gains of the attention norm, queries, keys, values,
            output, the gains of the feed-forward norm, gate, up, down.
        sizes: width, outputs of the queries, of the keys, of one head and of the gate, the same in
            every block.
        numbers: (block, 3): epsilon of the attention norm, factor on query times key, epsilon of
            the feed-forward norm.
        rows: which rows of the state are stored.
        batch: row of the batch, of each of them.
        asked: position of each; its query sees slots up to it.
        cosine: (stored row, head_dim).
        sine: likewise, negative for the first half of a head.
        slots: where each is stored.
        positions: (batch, slot), -1 for slots that hold nothing.
        active: which of the stored rows get the updates, as places in `rows`.
        stores: (block, 3): addresses of keys and of values, (batch, room, key_value_head,
            head_dim), written; and their room.
    """
    width, queries, groups, size, inner = sizes
    if len(active) == 0:
        turned, plain = _stand_still(state, weights, sizes, numbers, rows, cosine, sine)
    for at in range(len(weights)):
        held = (len(positions), stores[at, 2], groups // size, size)
        keys, values = carray(_floats(stores[at, 0]), held), carray(_floats(stores[at, 1]), held)
        if len(active) == 0:
            _store(turned[at], plain[at], keys, values, batch, slots)
            continue
        _attention(
            state, rows, active, carray(_floats(weights[at, 0]), (width,)), numbers[at, 0],
            carray(_floats(weights[at, 1]), (queries, width)),
            carray(_floats(weights[at, 2]), (groups, width)),
            carray(_floats(weights[at, 3]), (groups, width)),
            carray(_floats(weights[at, 4]), (width, queries)), cosine, sine, keys, values,
            batch, slots, positions, asked, numbers[at, 1],
        )  # fmt: skip
        _feed_forward(
            state, rows[active], carray(_floats(weights[at, 5]), (width,)), numbers[at, 2],
            carray(_floats(weights[at, 6]), (inner, width)),
            carray(_floats(weights[at, 7]), (inner, width)),
            carray(_floats(weights[at, 8]), (width, inner)),
        )  # fmt: skip


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def _stand_still(state, weights, sizes, numbers, rows, cosine, sine):
    """Keys and values that all blocks make of rows which none of them updates, in one region."""
    width, _, groups, size, _ = sizes
    count = _padded(len(rows))
    normed = np.empty((len(weights), count, width), np.float32)
    for at in range(len(weights)):
        gains = carray(_floats(weights[at, 0]), (width,))
        normed[at] = _normed(state, rows, gains, numbers[at, 0])
    turned = np.empty((len(weights), count, groups // size, size), np.float32)
    plain = np.empty((len(weights), count, groups), np.float32)
    for task in prange(len(weights) * groups):  # pairs of outputs: half of them keys
        at, pair = task // groups, task % groups
        if pair < groups // 2:
            key = carray(_floats(weights[at, 2]), (groups, width))
            _turned(normed[at], key, pair, cosine, sine, turned[at])
        else:
            value = carray(_floats(weights[at, 3]), (groups, width))
            outputs(normed[at], value, pair - groups // 2, plain[at])
    return turned, plain


@njit(nogil=True, cache=True)
@no_type_check
def _store(turned, plain, keys, values, batch, slots):
    """Write the keys and values of some rows where they belong."""
    for i in range(len(batch)):
        keys[batch[i], slots[i]] = turned[i]
        values[batch[i], slots[i]] = plain[i].reshape(turned.shape[1:])


@njit(parallel=True, fastmath=True, nogil=True, cache=True)
@no_type_check
def _attention(
    state, rows, active, norm, epsilon, query, key, value, output, cosine, sine,
    keys, values, batch, slots, positions, asked, scale,
):  # fmt: skip
    """The attention half, as `blocks` has it."""
    normed = _normed(state, rows, norm, epsilon)
    size, groups = keys.shape[3], keys.shape[2]
    heads = query.shape[0] // size
    queries = np.empty((len(normed), heads, size), np.float32)
    turned = np.empty((len(normed), groups, size), np.float32)
    plain = np.empty((len(normed), groups * size), np.float32)
    _project(normed, query, key, value, cosine, sine, queries, turned, plain)
    _store(turned, plain, keys, values, batch, slots)
    count = len(active)
    mixed = np.zeros((_padded(count), heads * size), np.float32)
    for task in prange(count * heads):
        one, head = task // heads, task % heads
        i = active[one]
        _mix(
            queries[i, head], keys[batch[i]], values[batch[i]], positions[batch[i]], asked[i],
            head * groups // heads, scale, mixed[one, head * size : (head + 1) * size],
        )  # fmt: skip
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
        ask_ahead(weight[j], weight[j + 1])
        if inner.shape[0] == 1:
            one, two = pair_products(weight[j], weight[j + 1], inner, 0)
            state[rows[0], j] += one
            state[rows[0], j + 1] += two
        else:
            for at in range(0, inner.shape[0], TILE):
                ones, twos = tile_products(weight[j], weight[j + 1], inner, at)
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
        ask_ahead(gate[j], up[j])
        if normed.shape[0] == 1:
            one, two = pair_products(gate[j], up[j], normed, 0)
            inner[0, j] = one / (np.float32(1) + np.exp(-one)) * two
        else:
            for at in range(0, normed.shape[0], TILE):
                ones, twos = tile_products(gate[j], up[j], normed, at)
                for i in range(TILE):
                    inner[at + i, j] = ones[i] / (np.float32(1) + np.exp(-ones[i])) * twos[i]
    _add_product(inner, down, state, rows)


def compile_all() -> None:
    """Run the kernel once on next to nothing."""
    rows, state = np.zeros(1, np.int64), np.zeros((1, 2), np.float32)
    square, store = np.zeros((2, 2), np.float32), np.zeros((1, 1, 1, 2), np.float32)
    own = np.full((1, 9), square.ctypes.data)
    stores = np.array([[store.ctypes.data, store.ctypes.data, 1]])
    blocks(
        state, own, (2, 2, 2, 2, 2), np.ones((1, 3), np.float32), rows, rows, rows, state,
        state, rows, np.zeros((1, 1), np.int64), rows, stores,
    )  # fmt: skip
