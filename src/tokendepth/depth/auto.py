"""`auto`: of each span, the executor that a short measurement on this machine found fastest.

How long a span takes on an executor is close to a straight line in the share of rows that run. The
line is measured once for each kind of block and size of call (rounded to powers of two) on random
rows, and remembered as long as the process lives, since it is a fact of the machine and not of a
model or a call. A gathering executor is taken only where its line lies below that of `dense` by
more than what a measurement of this length may err, so that `auto` is not slower than `dense`.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from tokendepth.depth import few
from tokendepth.depth.base import Context, kept_rows, unread, unwatched
from tokendepth.depth.execute import EXECUTORS, ExecutorName, Hidden
from tokendepth.nn.attention import Attention, AttentionConfig
from tokendepth.nn.block import Block, Norms
from tokendepth.nn.cache import Cache
from tokendepth.nn.feed_forward import FeedForward, FeedForwardConfig
from tokendepth.nn.rotary import Rotary, frequencies
from tokendepth.nn.track import EMPTY
from tokendepth.numerics import keyed_uniform
from tokendepth.types import Decision, KeyValueRule, Schedule, Span

SHARES = (0.3, 0.8)
"""At which gathering executors are measured."""
MARGIN = 1.03
"""How many times faster than `dense` a line must promise to be."""
ROUNDS = 5
MOST_NUMBERS = 2**22
"""Of the widest layer in a measurement on a processor; beyond them time grows with the rows."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the time of a span depends on, but for the share of rows that run."""

    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    parallel: bool
    turned: int | None
    """Features that rotary positions turn; None where positions are learned."""
    num_blocks: int
    batch: int
    length: int
    past: int
    """Slots that the caches hold already."""
    full: bool
    """No padding: kernels may spare their masks."""
    rule: KeyValueRule
    dtype: torch.dtype
    device: torch.device
    threads: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a span on each executor, a + b x share of rows that run."""

    lines: dict[ExecutorName, tuple[float, float]]

    def fastest(self, share: float) -> ExecutorName:
        """`dense` unless another is clearly faster."""
        times: dict[ExecutorName, float] = {
            name: start + slope * share for name, (start, slope) in self.lines.items()
        }
        best: ExecutorName = min(times, key=lambda name: times[name])
        return best if times[best] * MARGIN < times["dense"] else "dense"


def choose(
    span: Span, blocks: Sequence[Block], hidden: Hidden, decision: Decision, context: Context
) -> ExecutorName:
    """The executor for one span of one call."""
    if context.purpose != "run" or few.fits(blocks, hidden, decision, span, context):
        return "gathered"
    if decision.keep is None:
        return "dense"
    rows = context.mask.numel()
    count = int(kept_rows(decision, context.mask).sum())
    if count == 0:
        return "gathered"  # keys and values alone
    if count == rows:
        return "dense"
    return costs(_kind(span, blocks, hidden, context)).fastest(count / rows)


@lru_cache(maxsize=256)
def costs(kind: Kind) -> Costs:
    """Measured now, in turn and in rounds; medians. Draws nothing from public generators."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        trial = _Trial(kind)
        arms: list[tuple[ExecutorName, float]] = [("dense", 1.0)]
        for name in EXECUTORS:
            if name != "dense":
                arms.extend((name, share) for share in SHARES)
        seconds: dict[tuple[ExecutorName, float], list[float]] = {arm: [] for arm in arms}
        for number in range(ROUNDS + 1):
            for arm in arms if number % 2 else reversed(arms):
                took = trial.seconds(*arm)
                if number:  # the first round warms up
                    seconds[arm].append(took)
    middle = {arm: statistics.median(values) for arm, values in seconds.items()}
    low, high = SHARES
    lines = {"dense": (middle["dense", 1.0], 0.0)}
    for name in EXECUTORS:
        if name != "dense":
            slope = (middle[name, high] - middle[name, low]) / (high - low)
            lines[name] = (middle[name, low] - slope * low, slope)
    return Costs(lines)  # pyright: ignore[reportArgumentType]


def _kind(span: Span, blocks: Sequence[Block], hidden: Tensor, context: Context) -> Kind:
    block, turn = blocks[0], context.turns[blocks[0].windowed]
    store = context.cache.stores.get((context.purpose, span.blocks[0], span.loop))
    length, batch = _rounded(hidden.shape[1]), _rounded(len(hidden))
    if hidden.device.type == "cpu":
        batch = min(batch, max(1, MOST_NUMBERS // (length * block.feed_forward.config.inner)))
    return Kind(
        attention=block.attention.config,
        feed_forward=block.feed_forward.config,
        parallel=block.parallel,
        turned=None if turn is None else turn[0].shape[-1],
        num_blocks=len(blocks),
        batch=batch,
        length=length,
        past=0 if store is None else _rounded(len(store.track)),
        full=context.full,
        rule=context.cache.rule,
        dtype=hidden.dtype,
        device=hidden.device,
        threads=torch.get_num_threads(),
    )


class _Trial:
    """A span of random blocks, and what a call on it needs."""

    def __init__(self, kind: Kind) -> None:
        self.kind, shape = kind, (kind.batch, kind.length)
        self.blocks = [_block(kind) for _ in range(kind.num_blocks)]
        self.span = Span(blocks=tuple(range(kind.num_blocks)))
        # Drawn on the processor, whose generator is put back after the measurement.
        self.hidden = torch.randn(*shape, kind.attention.width).to(kind.device, kind.dtype)
        steps = torch.arange(kind.past + kind.length, device=kind.device)
        self.positions = steps[kind.past :].expand(shape)
        self.mask = torch.ones(shape, dtype=torch.bool, device=kind.device)
        self.mask[0, 0] = kind.full or kind.past > 0 or kind.length == 1
        self.draws = keyed_uniform(0, torch.arange(self.mask.numel()))
        self.turn = None
        if kind.turned is not None:
            rotary = Rotary(frequencies(kind.turned, 10_000.0).to(kind.device))
            self.turn = rotary.turn(self.positions, kind.dtype)
        self.cache = Cache(kind.rule, room=kind.past + kind.length, rewind=kind.length)
        self._fill(steps[: kind.past])

    def seconds(self, name: ExecutorName, share: float) -> float:
        """One run with so many rows kept."""
        kept = (self.draws < share).view(self.mask.shape).to(self.kind.device)
        decision = Decision(keep=None if name == "dense" and share == 1 else kept)
        context = self._context()
        self._settled()
        began = time.perf_counter()
        EXECUTORS[name](self.span, self.blocks, self.hidden, self.hidden, decision, context)
        self._settled()
        took = time.perf_counter() - began
        self.cache.advance(self.mask, full=context.full)
        if self.kind.past:
            self.cache.crop(self.kind.past)
        else:
            self.cache.reset()
        return took

    def _context(self) -> Context:
        full = bool(self.mask.all())
        return Context(
            positions=self.positions,
            mask=self.mask,
            full=full,
            slots=self.positions if full else torch.where(self.mask, self.positions, EMPTY),
            row_keys=torch.zeros(self.kind.batch, dtype=torch.long, device=self.kind.device),
            turns=(self.turn, self.turn),
            schedule=Schedule(spans=(self.span,)),
            cache=self.cache,
            forget=False,
            routing="hard",
            read=unread,
            watch=unwatched,
        )

    def _fill(self, steps: Tensor) -> None:
        """Caches that hold as much as those of the call."""
        if len(steps) == 0:
            return
        kind, slots = self.kind, steps.expand(self.kind.batch, -1)
        shape = (*slots.shape, kind.attention.num_key_value_heads, kind.attention.head_dim)
        for index in self.span.blocks:
            keys = torch.randn(shape).to(kind.device, kind.dtype)
            store = self.cache.store("run", index, 0, kind.attention.window)
            store.extend(keys, keys.clone(), slots, 0, in_order=True)
        self.cache.advance(torch.ones_like(slots, dtype=torch.bool), full=True)

    def _settled(self) -> None:
        if self.kind.device.type == "cuda":
            torch.cuda.synchronize(self.kind.device)
        if self.kind.device.type == "mps":
            torch.mps.synchronize()


def _block(kind: Kind) -> Block:
    """One with random weights; its norms stand for those of any kind."""
    width = kind.attention.width
    norms = Norms(attention=nn.RMSNorm(width), feed_forward=nn.RMSNorm(width))
    block = Block(
        norms, Attention(kind.attention), FeedForward(kind.feed_forward), parallel=kind.parallel
    )
    return block.to(kind.device, kind.dtype).eval()


def _rounded(number: int) -> int:
    """The nearest power of two; 0 stays."""
    return 0 if number == 0 else 2 ** round(math.log2(number))
