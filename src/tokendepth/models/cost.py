"""The ledger: what a forward pass multiplied and moved, from the rows and pairs it executed.

Matrix products alone are counted, from the modules as they are; a multiply-add is 2 FLOPs. Norms,
activations, softmax, rotary turns and biases are not. Two ways of counting:

* `visible`, the ledger proper: tokens that are no padding, and pairs of a query and a key it sees.
* `computed`: also padding rows, padded query slots and masked pairs, since a plain attention kernel
  multiplies the whole rectangle. It is what `torch.utils.flop_counter` counts under the math
  kernel; the difference between the two is what padding and masks cost.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from tokendepth.depth.base import kept_rows
from tokendepth.depth.execute import ExecutorName, spreads
from tokendepth.models.decoder import Decoder, DecoderOutput
from tokendepth.models.walk import Record
from tokendepth.nn.block import Block
from tokendepth.nn.cache import Key, Purpose
from tokendepth.nn.rows import Rows
from tokendepth.nn.track import EMPTY, Track
from tokendepth.types import PLAIN, Decision, Span

Counting = Literal["visible", "computed"]
Line = Literal[
    "query",
    "key_value",
    "attention",
    "output",
    "feed_forward",
    "adapter",
    "head",
    "check",
    "router",
]
LINES: tuple[Line, ...] = Line.__args__


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """FLOPs by line, bytes moved by gathers, and how many layers of how many tokens ran."""

    flops: Mapping[Line, int]
    """Of the coda's products and the head under `check` where a read-out on the way ran them."""
    gathered_bytes: int
    """Rows that gathers and scatters moved, each read once and written once."""
    executed: int
    """Token-layers that ran, checks left out."""
    tokens: int
    """Tokens of the call, padding left out."""
    layers: int
    """Block executions of the full schedule."""

    @property
    def total_flops(self) -> int:
        """Over all lines."""
        return sum(self.flops.values())

    @property
    def executed_share(self) -> float:
        """Executed token-layers over tokens x layers of the full schedule, stem included."""
        return self.executed / (self.tokens * self.layers) if self.tokens else 1.0

    def __add__(self, other: "Ledger") -> "Ledger":
        """Two calls of one schedule."""
        assert self.layers == other.layers
        return Ledger(
            flops={line: self.flops[line] + other.flops[line] for line in LINES},
            gathered_bytes=self.gathered_bytes + other.gathered_bytes,
            executed=self.executed + other.executed,
            tokens=self.tokens + other.tokens,
            layers=self.layers,
        )


def ledger(
    decoder: Decoder,
    output: DecoderOutput | Record,
    *,
    executor: ExecutorName | None = None,
    before: Mapping[Key, Track] | None = None,
    counting: Counting = "visible",
) -> Ledger:
    """What a call cost.

    Args:
        decoder: that ran it.
        output: of the call, or its record.
        executor: what it would have cost on another one; the call's own by default.
        before: `cache.tracks` taken before the call, where there was a cache.
        counting: `visible` pairs and tokens, or all that is `computed`.

    Raises:
        ValueError: a call that goes on from a cache, without `before`; or `auto` for a call that
            ran on another executor.
    """
    record = output if isinstance(output, Record) else output.record
    if before is None and bool((record.positions[record.mask] >= record.mask.shape[1]).any()):
        raise ValueError("before: the call had a cache; give cache.tracks taken before the call")
    executor = executor or record.executor
    if executor == "auto" and record.executor != "auto":
        raise ValueError("executor: what auto would choose is known of a call that ran on it alone")
    return _Count(decoder, record, executor, before or {}, counting).run()


def dense_twin(record: Record) -> Record:
    """The same tokens with nothing skipped, nothing decided and nothing read on the way."""
    return replace(
        record,
        decisions=(PLAIN,) * len(record.schedule.spans),
        checked=(),
        checked_before=(),
        policy=None,
        executor="dense",
        ran=("dense",) * len(record.schedule.spans),
    )


def product_flops(module: nn.Module) -> int:
    """FLOPs that the linear layers of a module spend on one row."""
    return sum(
        2 * part.in_features * part.out_features
        for part in module.modules()
        if isinstance(part, nn.Linear)
    )


class _Count:
    """The walk of a forward pass once more, with numbers of rows in place of rows."""

    def __init__(
        self,
        decoder: Decoder,
        record: Record,
        executor: ExecutorName,
        before: Mapping[Key, Track],
        counting: Counting,
    ) -> None:
        self.decoder, self.record = decoder, record
        self.executor: ExecutorName = executor
        self.visible = counting == "visible"
        self.tracks: dict[Key, Track] = dict(before)
        self.flops: Counter[Line] = Counter()
        self.moved = 0
        self.valid = int(record.mask.sum())
        self.rows = self.valid if self.visible else record.mask.numel()
        self.rule = decoder.config.key_value_rule
        self.full = bool(record.mask.all())
        own = record.read_out if isinstance(record.read_out, nn.Module) else None
        self.head = product_flops(own or decoder.head)

    def run(self) -> Ledger:
        record, schedule = self.record, self.record.schedule
        checks = list(zip(record.checked_before, record.checked, strict=True))
        for index, span in enumerate(schedule.spans):
            for at, rows in checks:
                if at == index:
                    self._check(index, rows)
            if span.inject and self.decoder.adapter is not None:
                self.flops["adapter"] += self.rows * product_flops(self.decoder.adapter)
            ran = record.ran[index] if self.executor == "auto" else self.executor
            self._span(span, record.decisions[index], "run", self.flops, ran)
        num_read = len(record.mask) if record.only_last else self.rows
        self.flops["head"] += num_read * self.head
        if record.policy is not None:
            routed = sum(span.routed for span in schedule.spans)
            self.flops["router"] += record.policy.flops(tokens=self.rows, spans=routed)
        return Ledger(
            flops={line: self.flops[line] for line in LINES},
            gathered_bytes=self.moved * self.decoder.embedding.weight.element_size(),
            executed=int(record.executed().sum()),
            tokens=self.valid,
            layers=len(schedule.visits),
        )

    def _check(self, before: int, rows: Bool[Tensor, "batch seq"]) -> None:
        spent: Counter[Line] = Counter()
        decision = PLAIN if torch.equal(rows, self.record.mask) else Decision(keep=rows)
        for index in self.record.schedule.coda:
            span = replace(self.record.schedule.spans[index], loop=before)
            ran: ExecutorName = "gathered" if self.executor == "auto" else self.executor
            self._span(span, decision, "check", spent, ran)
        spent["head"] += int(rows.sum()) * self.head
        self.flops["check"] += spent.total()

    def _span(
        self,
        span: Span,
        decision: Decision,
        purpose: Purpose,
        flops: "Counter[Line]",
        executor: ExecutorName,
    ) -> None:
        mask = self.record.mask
        running = Rows(kept_rows(decision, mask))
        gathers = executor == "gathered" and running.count < mask.numel()
        moves = gathers and not (self.full and running.count == 0)
        if moves:
            self.moved += _moved_by_span(self.decoder, decision, self.record.gates, running.count)
        for number, index in enumerate(span.blocks):
            block: Block = self.decoder.blocks[index]  # pyright: ignore[reportAssignmentType]
            attention = block.attention
            standing = self.valid - running.count if self.rule == "all" else 0
            if gathers:
                num_queries = num_inner = running.count
                stored_rows = running.count + standing
                if standing and number == 0 and not self.visible:
                    stored_rows = mask.numel()
                if moves:
                    first = number == 0
                    self.moved += _moved_by_block(block, running.count, standing, first=first)
            else:
                num_queries = num_inner = stored_rows = self.rows
                if executor == "feed_forward" and decision.keep is not None:
                    num_inner = running.count
                    self.moved += 2 * 2 * num_inner * self.decoder.config.width
            pairs = self._pairs(block, index, span, running, purpose, gathers=gathers)
            key_value = product_flops(attention.key) + product_flops(attention.value)
            flops["query"] += num_queries * product_flops(attention.query)
            flops["key_value"] += stored_rows * key_value
            flops["attention"] += pairs * 4 * attention.output.in_features
            flops["output"] += num_queries * product_flops(attention.output)
            flops["feed_forward"] += num_inner * product_flops(block.feed_forward)

    def _pairs(
        self,
        block: Block,
        index: int,
        span: Span,
        running: Rows,
        purpose: Purpose,
        *,
        gathers: bool,
    ) -> int:
        """Pairs of query and key; the store is extended as the executor does it."""
        record, window = self.record, block.attention.config.window
        key = (purpose, index, 0 if self.rule == "carried" else span.loop)
        stored = record.mask if self.rule == "all" else running.mask
        new = torch.where(stored, record.positions, EMPTY)
        if gathers and not (self.rule == "all" and running.count < self.valid):
            new = _padded_positions(running, record.positions)
        track = self.tracks[key] = self.tracks.get(key, Track()).extended(new, span.loop)
        if not self.visible:
            width, carried = record.mask.shape[1], self.rule == "carried"
            num_slots = track.num_positions if carried else len(track)
            # The executor knows slots to be in order where nothing was padded and all are stored.
            in_order = self.full and self.rule == "all"
            in_order = in_order or (carried and track.newest(span.loop).whole)
            if gathers and not spreads(running, num_slots, window, in_order=in_order):
                width = running.width
            return len(record.mask) * width * num_slots
        return track.num_visible(
            record.positions,
            running.mask if gathers else record.mask,
            span.loop,
            newest=self.rule == "carried",
            window=window,
        )


def _padded_positions(rows: Rows, positions: Tensor) -> Tensor:
    there = rows.pad(torch.ones_like(rows.batch)) == 1
    return torch.where(there, rows.pad(rows.gather(positions)), EMPTY)


def _moved_by_span(decoder: Decoder, decision: Decision, gates: str, count: int) -> int:
    """Numbers of the rows that enter and leave, and of the old ones where a weight needs them."""
    old = decision.weight is not None and gates == "span"
    return 2 * count * decoder.config.width * (3 if old else 2)


def _moved_by_block(block: Block, count: int, standing: int, *, first: bool) -> int:
    """Numbers of queries, mixed values, and what keys and values need to lie in one rectangle."""
    attention = block.attention
    numbers = 2 * count * attention.output.in_features
    key_value = attention.key.out_features + attention.value.out_features
    if standing and first:
        numbers += (count + standing) * attention.query.in_features
    else:
        numbers += (count + standing) * key_value
    return 2 * numbers
