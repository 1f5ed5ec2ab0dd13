"""One walk over the spans of a schedule: decide, latch, execute, and write down what was done."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tokendepth.depth import auto, few
from tokendepth.depth.base import Context, Policy, ReadOut, kept_rows, unread, unwatched
from tokendepth.depth.execute import EXECUTORS, ExecutorName, check_executor
from tokendepth.nn.block import Block
from tokendepth.nn.cache import Memory
from tokendepth.numerics import keyed_normal
from tokendepth.types import PLAIN, Decision, Gates, Plan, Schedule, Span

if TYPE_CHECKING:
    from tokendepth.models.decoder import Decoder


_WITH_GRAPH = nullcontext()


class Walk:
    """The state of one forward pass between its spans."""

    def __init__(
        self,
        decoder: "Decoder",
        policy: Policy,
        plan: Plan | None,
        executor: ExecutorName,
        context: Context,
    ) -> None:
        self.decoder, self.policy = decoder, policy
        check_executor(executor)
        self.executor_name: ExecutorName = executor
        self.context = context
        self.ran: list[ExecutorName] = []
        """What ran each span: with `auto` they may differ."""
        self.blocks: list[Block] = list(decoder.blocks)  # pyright: ignore[reportAttributeAccessIssue]
        self.replayed = (
            None
            if plan is None
            else plan.aligned(context.schedule, context.row_keys, context.positions, context.mask)
        )
        self.decisions: list[Decision] = []
        self.checked: list[Tensor] = []
        self.checked_before: list[int] = []
        self.state: Any = None
        self.alive: Tensor | None = None
        self.hidden: Tensor | None = None
        context.read = self._read
        self.embedded: Tensor | None = None
        self.started = False
        self.ahead: Decision | None = None
        """Of the next span, where it was asked for before this one ran."""

    def run(self, hidden: Tensor, until: int | None = None) -> Tensor:
        """All spans, or only those before block execution `until`."""
        context, spans, index = self.context, self.context.schedule.spans, 0
        while index < len(spans):
            if until is not None and context.schedule.first_visit[index] >= until:
                break
            span = spans[index]
            context.span_index, context.normed = index, None
            if span.inject and self.embedded is None:
                self.embedded = hidden
                hidden = _start(hidden, context)
            with _WITH_GRAPH if span.grad else torch.no_grad():
                entry = self.decoder.enter(span, hidden, self.embedded)
                decision = self._decided(index, hidden, entry)
                count = self._alike(index, hidden, decision)
                if count > 1:
                    span = _joined(spans[index : index + count])
                name = self._executor(span, hidden, decision, context)
                run = EXECUTORS[name]
                hidden = run(span, self._blocks(span), hidden, entry, decision, context)
            for _ in range(count):
                self.decisions.append(decision)
                self.ran.append(name)
            index += count
            if context.forget:
                context.cache.stores.clear()
            if context.watch is not unwatched:
                last = context.schedule.first_visit[index - 1] + len(spans[index - 1].blocks) - 1
                context.watch(last, lambda made=hidden: made)
        context.read, self.hidden = unread, None  # no cycle that would keep states alive
        return hidden

    def _decided(self, index: int, hidden: Tensor, entry: Tensor) -> Decision:
        """Of this span, unless looking ahead has decided it already."""
        ahead, self.ahead = self.ahead, None
        return self._decide(index, hidden, entry) if ahead is None else ahead

    def _alike(self, index: int, hidden: Tensor, decision: Decision) -> int:
        """Spans from here on that have the same decision, where running them as one saves time."""
        context = self.context
        blind = self.policy.blind or self.replayed is not None
        if not blind or context.forget or context.watch is not unwatched or not few.are_few(hidden):
            return 1
        after = context.schedule.breaks[index]
        for number in range(index + 1, after):
            context.span_index = number
            self.ahead = self._decide(number, hidden, hidden)
            if not _same(self.ahead, decision):
                context.span_index = index
                return number - index
        context.span_index, self.ahead = index, None
        return after - index

    def _blocks(self, span: Span) -> list[Block]:
        return [self.blocks[index] for index in span.blocks]

    def _executor(
        self, span: Span, hidden: Tensor, decision: Decision, context: Context
    ) -> ExecutorName:
        if self.executor_name != "auto":
            return self.executor_name
        return auto.choose(span, self._blocks(span), hidden, decision, context)

    def _decide(self, index: int, hidden: Tensor, entry: Tensor) -> Decision:
        context, span = self.context, self.context.schedule.spans[index]
        if not span.routed:
            return PLAIN
        if self.replayed is not None:
            return self.replayed.decision(index)
        if not self.started:
            self.state = self.policy.start(hidden, context)
            self.started = True
        self.hidden = hidden
        context.entry, context.block = entry, self.blocks[span.blocks[0]]
        decision, self.state = self.policy.decide(span, hidden, self.state, context)
        return self._latch(decision) if self.policy.sticky else decision

    def _latch(self, decision: Decision) -> Decision:
        """Once not kept, never kept again."""
        kept, before = decision.keep, self.alive
        if before is not None and kept is not before:
            kept = before if kept is None else kept & before
        self.alive = kept
        return decision if kept is decision.keep else replace(decision, keep=kept)

    def _read(self, rows: Bool[Tensor, "batch seq"]) -> Tensor:
        """Logits that the marked rows would get before this span: coda and head.

        Their keys and values lie in slots of their own, tagged by the span instead of a loop.
        """
        before, hidden = self.context.span_index, self.hidden
        assert hidden is not None
        context = replace(self.context, purpose="check", watch=unwatched, normed=None)
        marked = rows & context.mask
        whole = torch.equal(marked, context.mask)
        for index in context.schedule.coda:
            context.span_index = index
            span = replace(context.schedule.spans[index], loop=before)
            decision = PLAIN if whole else Decision(keep=marked)
            run = EXECUTORS[self._executor(span, hidden, decision, context)]
            entry = self.decoder.enter(span, hidden, self.embedded)
            hidden = run(span, self._blocks(span), hidden, entry, decision, context)
        self.context.padded_queries = context.padded_queries
        self.checked.append(marked)
        self.checked_before.append(before)
        read = self.policy.read_out or self.decoder.read_out
        coda = sum(len(context.schedule.spans[index].blocks) for index in context.schedule.coda)
        return read(hidden[marked], self._depth_so_far()[marked] + coda)

    def _depth_so_far(self) -> Int[Tensor, "batch seq"]:
        spans = self.context.schedule.spans
        depth = torch.zeros_like(self.context.positions)
        for span, decision in zip(spans, self.decisions, strict=False):
            depth = depth + len(span.blocks) * kept_rows(decision, self.context.mask)
        return depth

    def memory(self) -> Memory | None:
        """What the cache keeps for the policy's next decisions."""
        if not self.started:
            return self.context.previous
        return self.policy.remember(self.state, self.context)

    def record(self, *, only_last: bool = False) -> "Record":
        """What was decided, for which tokens."""
        context = self.context
        return Record(
            schedule=context.schedule,
            row_keys=context.row_keys,
            positions=context.positions,
            mask=context.mask,
            decisions=tuple(self.decisions),
            gates=context.gates,
            checked=tuple(self.checked),
            checked_before=tuple(self.checked_before),
            policy=self.policy if self.replayed is None else None,
            executor=self.executor_name,
            ran=tuple(self.ran),
            only_last=only_last,
            read_out=self.policy.read_out,
        )


@lru_cache(maxsize=64)
def _joined(spans: tuple[Span, ...]) -> Span:
    """One span of all their blocks."""
    return replace(spans[0], blocks=tuple(block for span in spans for block in span.blocks))


def _same(one: Decision, other: Decision) -> bool:
    """Whether both say the same of every row, and nothing but which run."""
    if one is other:
        return True
    parts = (one.weight, other.weight, one.margin, other.margin)
    if any(part is not None for part in parts) or one.penalty or other.penalty:
        return False
    if one.keep is None or other.keep is None:
        return one.keep is other.keep
    return torch.equal(one.keep, other.keep)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The decisions of one forward pass, and what they were about."""

    schedule: Schedule
    row_keys: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch seq"]
    mask: Bool[Tensor, "batch seq"]
    decisions: tuple[Decision, ...]
    gates: Gates
    checked: tuple[Bool[Tensor, "batch seq"], ...]
    """Rows of each read-out on the way."""
    checked_before: tuple[int, ...]
    """The span before which each was made."""
    policy: Policy | None
    """Who decided; None where a plan was replayed."""
    executor: ExecutorName
    ran: tuple[ExecutorName, ...]
    """What ran each span."""
    only_last: bool = False
    """The last token of each row alone was read out."""
    read_out: ReadOut | None = None
    """The policy's own, where it has one."""

    @cached_property
    def last(self) -> tuple[Tensor, Tensor]:
        """Row and column of the last token of each row; the last column where there is none."""
        columns = torch.arange(self.mask.shape[1], device=self.mask.device)
        last = torch.where(self.mask, columns, -1).amax(dim=1)
        rows = torch.arange(len(last), device=last.device)
        return rows, torch.where(last < 0, len(columns) - 1, last)

    def checks(self) -> Bool[Tensor, "batch seq check"]:
        """Which rows each read-out on the way was made for."""
        if not self.checked:
            return self.mask.new_zeros((*self.mask.shape, 0))
        return torch.stack(self.checked, dim=-1)

    def executed(self) -> Bool[Tensor, "batch seq visit"]:
        """Which rows ran at each block execution."""
        kept = self._kept()
        return torch.stack([kept[index] for index, _ in self.schedule.visits], dim=-1)

    def _kept(self) -> list[Bool[Tensor, "batch seq"]]:
        """Of each span, the rows that ran; spans with one decision share a tensor."""
        known = {id(decision): decision for decision in self.decisions}
        kept = {key: kept_rows(decision, self.mask) for key, decision in known.items()}
        return [kept[id(decision)] for decision in self.decisions]

    def plan(self) -> Plan:
        """The decisions, detached."""
        weights = [decision.weight for decision in self.decisions]
        given = next((one for one in weights if one is not None), None)
        weight = None
        if given is not None:
            plain = torch.ones_like(given)
            weight = torch.stack([plain if one is None else one for one in weights], -1).detach()
        return Plan(
            spans=self.schedule.spans,
            gates=self.gates,
            row_keys=self.row_keys,
            positions=self.positions,
            valid=self.mask,
            keep=torch.stack(self._kept(), dim=-1),
            weight=weight,
        )

    def penalty(self) -> dict[str, Tensor]:
        """Each named penalty, summed over spans."""
        total: dict[str, Tensor] = {}
        for decision in self.decisions:
            for name, value in decision.penalty.items():
                total[name] = total[name] + value if name in total else value
        return total


def _start(hidden: Tensor, context: Context) -> Tensor:
    """What the looped state begins with."""
    order = context.schedule
    if order.start == "hidden":
        return hidden
    if order.start == "zeros":
        return torch.zeros_like(hidden)
    draw = keyed_normal(
        order.seed, hidden.shape[-1], context.row_keys[:, None], context.positions,
        within=3.0 if order.start == "truncated" else None,
    )  # fmt: skip
    return (order.start_std * draw).to(hidden)
