"""Executors: how a decision is run. All of them give the same answer.

`dense` computes every row and keeps the old residual where a row is skipped: the specification.
`gathered` computes the kept rows alone. `feed_forward` gathers for the feed-forward layer alone.
`auto` takes one of these for each span, see `depth/auto.py`.

Keys and values of skipped rows follow the cache's rule: under `all` they come from the residual at
which the row stands still, under `kept` and `carried` they are not computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokendepth.depth import few
from tokendepth.depth.base import Context, Turns, broadcast, kept_rows
from tokendepth.nn.block import Block
from tokendepth.nn.cache import Store
from tokendepth.nn.rotary import Turn
from tokendepth.nn.rows import Rows
from tokendepth.nn.track import EMPTY
from tokendepth.types import Decision, Span

Hidden = Float[Tensor, "batch seq dim"]
Executor = Callable[[Span, Sequence[Block], Hidden, Hidden, Decision, Context], Hidden]
"""(span, its blocks, hidden, entry, decision, context) -> hidden. `entry` is what the span's first
block reads: `hidden`, or what the adapter made of it where the span injects."""

SPREAD_FROM = 0.4
"""Of the rows of a sequence: with fewer queries, the masked kernel on them alone is faster."""

ExecutorName = Literal["dense", "gathered", "feed_forward", "auto"]


def dense(
    span: Span,
    blocks: Sequence[Block],
    hidden: Hidden,
    entry: Hidden,
    decision: Decision,
    context: Context,
    *,
    rows: Rows | None = None,
) -> Hidden:
    """Compute every row of every block; skipped rows keep their residual.

    With `rows`, the feed-forward layer is computed for these alone.
    """
    keep, weight = decision.keep, decision.weight
    if keep is None and few.fits(blocks, hidden, decision, span, context):
        return few.run(span, blocks, hidden, entry, decision, context)
    gate = weight if context.gates == "update" else None
    stored = context.mask if context.cache.rule == "all" else kept_rows(decision, context.mask)
    state = entry
    for number, (index, block) in enumerate(zip(span.blocks, blocks, strict=True)):
        normed = _normed(block, state, context)
        turn = context.turns[block.windowed]
        queries = block.attention.queries(normed, turn)
        keys, values = block.attention.keys_values(normed, turn)
        store = _store(context, span, index, block)
        _extend(store, keys, values, stored, span.loop, context)
        mixed = _attend(block, queries, store, context.positions, span, context)
        added = _add(state, block.attention_update(mixed), gate)
        source = block.feed_forward_source(state, normed, added)
        del normed, queries, keys, values, mixed  # not held while the widest layer runs
        if rows is None:
            added = _add(added, block.feed_forward_update(source), gate)
        else:
            update = block.feed_forward_update(rows.gather(source))
            part = _add(rows.gather(added), update, None if gate is None else rows.gather(gate))
            added = rows.scatter(added, part)
        state = added if keep is None else torch.where(keep[..., None], added, state)
        if number + 1 < len(blocks):
            here = state if keep is None else torch.where(keep[..., None], state, hidden)
            context.watch(_visit(context, number), lambda made=here: made)
    return _leave(hidden, state, keep, weight, context)


def feed_forward(
    span: Span,
    blocks: Sequence[Block],
    hidden: Hidden,
    entry: Hidden,
    decision: Decision,
    context: Context,
) -> Hidden:
    """Attention for every row, the feed-forward layer for the kept rows alone."""
    kept = None if decision.keep is None else Rows(kept_rows(decision, context.mask))
    return dense(span, blocks, hidden, entry, decision, context, rows=kept)


def gathered(
    span: Span,
    blocks: Sequence[Block],
    hidden: Hidden,
    entry: Hidden,
    decision: Decision,
    context: Context,
) -> Hidden:
    """Compute the kept rows alone, and of the others what the rule for keys and values asks."""
    if few.fits(blocks, hidden, decision, span, context):
        return few.run(span, blocks, hidden, entry, decision, context)
    running = Rows(kept_rows(decision, context.mask))
    if running.count == context.mask.numel():
        return dense(span, blocks, hidden, entry, replace(decision, keep=None), context)
    if running.count == 0 and context.full:
        return _stand_still(span, blocks, hidden, entry, context)
    split, state = _Split.of(running, entry, context), running.gather(entry)
    gate = None
    if decision.weight is not None and context.gates == "update":
        gate = running.gather(decision.weight)
    for number, (index, block) in enumerate(zip(span.blocks, blocks, strict=True)):
        store = _store(context, span, index, block)
        normed = split.store_keys(store, block, state, span.loop, context, first=number == 0)
        if running.count:
            queries = block.attention.queries(normed, split.turns[block.windowed])
            mixed = _attend_rows(block, queries, running, store, span, context)
            added = _add(state, block.attention_update(mixed), gate)
            source = block.feed_forward_source(state, normed, added)
            state = _add(added, block.feed_forward_update(source), gate)
        if number + 1 < len(blocks):
            context.watch(_visit(context, number), lambda made=state: running.scatter(hidden, made))
    if context.gates == "span" and decision.weight is not None:
        old = running.gather(hidden)
        state = old + broadcast(running.gather(decision.weight), old) * (state - old)
    return running.scatter(hidden, state)


def _stand_still(
    span: Span, blocks: Sequence[Block], hidden: Hidden, entry: Hidden, context: Context
) -> Hidden:
    """No row runs: keys and values alone, where the rule wants them."""
    for number, (index, block) in enumerate(zip(span.blocks, blocks, strict=True)):
        if context.cache.rule == "all":
            normed = block.attention_norm(entry) if number else _normed(block, entry, context)
            keys, values = block.attention.keys_values(normed, context.turns[block.windowed])
            _extend(
                _store(context, span, index, block), keys, values, context.mask, span.loop, context
            )
        if number + 1 < len(blocks):
            context.watch(_visit(context, number), lambda: hidden)
    return hidden


@dataclass(frozen=True)
class _Split:
    """Rows that run and, where their keys and values are wanted, rows that stand still."""

    entry: Hidden
    running: Rows
    turns: Turns
    standing: Rows | None

    @staticmethod
    def of(running: Rows, entry: Hidden, context: Context) -> "_Split":
        turns = _gather_turns(running, context.turns)
        standing = Rows(context.mask & ~running.mask)
        if context.cache.rule != "all" or standing.count == 0:
            return _Split(entry, running, turns, None)
        return _Split(entry, running, turns, standing)

    @cached_property
    def still(self) -> Tensor:
        """The standing rows' residual, the same for every block of the span."""
        assert self.standing is not None
        return self.standing.gather(self.entry)

    def still_turn(self, block: Block, context: Context) -> Turn | None:
        """Rotary angles of the standing rows."""
        assert self.standing is not None
        return _gather_turns(self.standing, context.turns)[block.windowed]

    def store_keys(
        self,
        store: Store,
        block: Block,
        state: Tensor,
        loop: int,
        context: Context,
        *,
        first: bool,
    ) -> Tensor:
        """Store keys and values; return the running rows' attention input."""
        turn = self.turns[block.windowed]
        if self.standing is None:
            normed = block.attention_norm(state)
            keys, values = block.attention.keys_values(normed, turn)
            _extend_rows(store, keys, values, self.running, loop, context)
            return normed
        if first:  # both sets still read the same entry: no need to compute them apart
            whole = _normed(block, self.entry, context)
            normed = self.running.gather(whole)
            keys, values = block.attention.keys_values(whole, context.turns[block.windowed])
        else:
            normed = block.attention_norm(state)
            mine = block.attention.keys_values(normed, turn)
            still_normed = block.attention_norm(self.still)
            theirs = block.attention.keys_values(still_normed, self.still_turn(block, context))
            keys, values = (
                _merge(self.running, one, self.standing, other)
                for one, other in zip(mine, theirs, strict=True)
            )
        _extend(store, keys, values, context.mask, loop, context)
        return normed


EXECUTORS: dict[ExecutorName, Executor] = {
    "dense": dense,
    "gathered": gathered,
    "feed_forward": feed_forward,
}


def check_executor(name: str) -> None:
    """Raise a `ValueError` for an unknown name."""
    allowed = get_args(ExecutorName)
    if name not in allowed:
        raise ValueError(f"executor: got {name!r}; allowed are {', '.join(allowed)}")


def _add(state: Tensor, update: Tensor, gate: Tensor | None) -> Tensor:
    return state + update if gate is None else state + broadcast(gate, update) * update


def _leave(
    hidden: Hidden,
    state: Hidden,
    keep: Bool[Tensor, "batch seq"] | None,
    weight: Tensor | None,
    context: Context,
) -> Hidden:
    """What leaves the span: the new state, the old one for skipped rows, the weighted change."""
    if context.gates == "span" and weight is not None:
        state = hidden + broadcast(weight, hidden) * (state - hidden)
    return state if keep is None else torch.where(keep[..., None], state, hidden)


def _normed(block: Block, state: Hidden, context: Context) -> Hidden:
    """The block's attention input; not computed again where the policy has looked at it."""
    if context.normed is not None and context.normed[0] is state:
        return context.normed[1]
    return block.attention_norm(state)


def _store(context: Context, span: Span, index: int, block: Block) -> Store:
    window = block.attention.config.window
    return context.cache.store(context.purpose, index, span.loop, window)


def _attend(
    block: Block,
    queries: Tensor,
    store: Store,
    positions: Tensor,
    span: Span,
    context: Context,
) -> Tensor:
    """Attention over what is stored. The mask is spared where slots and queries are in order.

    That is so where the track says it of the slots, and the queries are all of them or the last.
    """
    assert store.keys is not None
    assert store.values is not None
    track, window, count = store.track, store.window, queries.shape[1]
    whole = positions is context.positions and count in (1, track.num_positions)
    whole = whole and (window is None or track.num_positions <= window)
    if whole and track.in_order:
        return block.attention.attend(queries, store.keys, store.values, None)
    if context.cache.rule == "carried":
        found = track.newest(span.loop)
        visible = None if whole and found.whole else found.visible(positions, window)
        return block.attention.attend(queries, *store.newest(found), visible)
    visible = track.visible(positions, window=window)
    return block.attention.attend(queries, store.keys, store.values, visible)


def _attend_rows(
    block: Block, queries: Tensor, rows: Rows, store: Store, span: Span, context: Context
) -> Tensor:
    """Attention of gathered queries, (row, width)."""
    track, carried = store.track, context.cache.rule == "carried"
    assert store.keys is not None
    assert store.values is not None
    in_order = track.in_order or (carried and track.newest(span.loop).whole)
    num_slots = track.num_positions if carried else len(track)
    if spreads(rows, num_slots, store.window, in_order=in_order):
        context.padded_queries += rows.mask.numel() - rows.count
        keys, values = store.keys, store.values
        if not track.in_order:
            keys, values = store.newest(track.newest(span.loop))
        return rows.gather(block.attention.attend(rows.spread(queries), keys, values, None))
    context.padded_queries += rows.num_padded
    positions = rows.pad(rows.gather(context.positions))
    return rows.unpad(_attend(block, rows.pad(queries), store, positions, span, context))


def spreads(rows: Rows, num_slots: int, window: int | None, *, in_order: bool) -> bool:
    """Whether gathered queries go back to their own places for attention.

    The causal kernel needs no mask and skips half of the rectangle, so that it is the faster one
    unless few rows are kept. It takes keys in the order of the queries and nothing before them.
    """
    length = rows.mask.shape[1]
    plain = in_order and num_slots == length and (window is None or length <= window)
    return plain and length > 1 and rows.width > SPREAD_FROM * length


def _extend(
    store: Store,
    keys: Tensor,
    values: Tensor,
    stored: Bool[Tensor, "batch seq"],
    loop: int,
    context: Context,
) -> None:
    """Store a rectangle of keys and values. Slots left empty are zeroed: 0 x NaN is NaN."""
    whole = stored is context.mask
    if whole and context.alone and context.cache.rule == "carried":
        store.renew()
    slots, in_order = context.slots, False
    if not whole:
        slots = torch.where(stored, context.positions, EMPTY)
    if whole and context.full:
        in_order = len(store.track) == context.cache.uniform
    else:
        keys = torch.where(stored[..., None, None], keys, 0.0)
        values = torch.where(stored[..., None, None], values, 0.0)
    store.extend(keys, values, slots, loop, in_order=in_order)


def _extend_rows(
    store: Store, keys: Tensor, values: Tensor, rows: Rows, loop: int, context: Context
) -> None:
    """Store gathered keys and values, padded to the row with the most."""
    positions = torch.where(
        rows.pad(torch.ones_like(rows.batch)) == 1,
        rows.pad(rows.gather(context.positions)),
        EMPTY,
    )
    store.extend(rows.pad(keys), rows.pad(values), positions, loop)


def _merge(running: Rows, mine: Tensor, standing: Rows, theirs: Tensor) -> Tensor:
    """Two sets of rows as one rectangle, zeros at padding."""
    empty = mine.new_zeros((*running.mask.shape, *mine.shape[1:]))
    return standing.scatter(running.scatter(empty, mine), theirs)


def _gather_turns(rows: Rows, turns: Turns) -> Turns:
    plain, windowed = turns
    mine = None if plain is None else (rows.gather(plain[0]), rows.gather(plain[1]))
    if windowed is plain or windowed is None:
        return mine, mine
    return mine, (rows.gather(windowed[0]), rows.gather(windowed[1]))


def _visit(context: Context, number: int) -> int:
    return context.schedule.first_visit[context.span_index] + number
