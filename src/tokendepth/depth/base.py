"""The interface of a policy, and what it may look at.

A policy decides, an executor does. A policy is a leaf: it implements this interface and is never
subclassed. What it decides may depend on a token's own past and on nothing else, unless it says
so with `causal`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokendepth.nn.block import Block
from tokendepth.nn.cache import Cache, Memory, Purpose
from tokendepth.nn.rotary import Turn
from tokendepth.types import Decision, Gates, Routing, Schedule, Span

State = Any
Turns = tuple[Turn | None, Turn | None]
"""Rotary angles for blocks without and with a window; None where positions are learned."""


@dataclass(kw_only=True)
class Context:
    """One forward pass as a policy and an executor see it."""

    positions: Int[Tensor, "batch seq"]
    """Position of each token in its row, padding not counted."""
    mask: Bool[Tensor, "batch seq"]
    """False at padding."""
    full: bool
    """True when there is no padding in this call."""
    slots: Int[Tensor, "batch seq"]
    """Positions as stored with keys and values: -1 at padding."""
    row_keys: Int[Tensor, " batch"]
    """Which document or window each row is; keys for draws and plans."""
    turns: Turns
    schedule: Schedule
    cache: Cache
    alone: bool = False
    """Nobody keeps the cache."""
    forget: bool
    """Nobody keeps the cache, and no later span looks into the stores of an earlier one."""
    routing: Routing
    gates: Gates = "update"
    purpose: Purpose = "run"
    span_index: int = 0
    previous: Memory | None = None
    """What the policy remembers from the calls before, with a cache."""
    read: Callable[[Tensor], Tensor]
    """Logits (row, vocab) that the marked rows would get now, in row-major order. A read runs the
    coda and the head, and is paid for. Call it in every decision or in none, whether or not a row
    needs it: the keys it stores are what later tokens see."""
    watch: Callable[[int, Callable[[], Tensor]], None]
    """Told (visit, how to make the state after it) by executors, for collected states."""
    padded_queries: int = 0
    """Query slots that attention had to pad so far."""
    entry: Tensor | None = field(default=None, repr=False)
    """What the span's first block reads: the hidden state, or what the adapter made of it."""
    block: Block | None = field(default=None, repr=False)
    """The span's first block."""
    normed: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    """The entry and its normed form, once a policy has asked; the block takes it from here."""

    few: Any = field(default=None, repr=False)
    """What `depth.few` has worked out for this call; False where it cannot take it."""

    def attention_input(self) -> Float[Tensor, "batch seq dim"]:
        """The normed input of the span's first block, computed once and shared with the block."""
        assert self.entry is not None
        assert self.block is not None
        if self.normed is None:
            self.normed = (self.entry, self.block.attention_norm(self.entry))
        return self.normed[1]


@runtime_checkable
class ReadOut(Protocol):
    """From states to logits; a policy may bring its own, which then makes the final logits too."""

    def __call__(
        self, rows: Float[Tensor, "row dim"], depth: Int[Tensor, " row"]
    ) -> Float[Tensor, "row vocab"]:
        """Logits of rows for which `depth` blocks have run."""
        ...


@runtime_checkable
class Sizes(Protocol):
    """What a policy may want to know of a decoder's config."""

    @property
    def width(self) -> int:
        """Features of a state."""
        ...

    @property
    def vocab_size(self) -> int:
        """Entries of a prediction."""
        ...

    @property
    def logit_cap(self) -> float | None:
        """Logits x become cap * tanh(x / cap)."""
        ...


@runtime_checkable
class Host(Protocol):
    """A decoder, as a policy config sees it when it makes its policy."""

    schedule: Schedule
    final_norm: nn.Module
    head: nn.Linear
    """Both for read-outs of the policy's own that share them."""

    @property
    def config(self) -> Sizes:
        """Sizes of the decoder."""
        ...


@runtime_checkable
class PolicyConfig(Protocol):
    """A frozen dataclass beside its policy: what a saved model keeps of it.

    Its name stands in `depth/registry.py`; one of a user's own is named by dotted path.
    """

    def build(self, host: Host) -> "Policy":
        """The policy for a decoder, with weights as they start."""
        ...


class Policy(nn.Module, ABC):
    """Says of each span which rows run and with what weight."""

    gates: ClassVar[Gates] = "update"
    """What a weight scales: each residual add of a block, or the change of the whole span."""
    routings: ClassVar[tuple[Routing, ...]] = ("hard",)
    """What it can do; the first is the default."""
    sticky: ClassVar[bool] = False
    """Once not kept, never kept again: the driver sees to it."""
    blind: ClassVar[bool] = False
    """Looks at no state and remembers nothing of spans: what it decides of a span is known before
    those in front of it have run. Spans with one decision may then run as one."""
    control: ClassVar[bool] = False
    """Learns nothing: a bar that a learned policy must clear. Comparisons mark it."""

    def __init__(self) -> None:
        super().__init__()
        # Not a class attribute: that would hide a module assigned under this name.
        self.read_out: ReadOut | None = None
        self.config: PolicyConfig | None = None

    def causal(self, routing: Routing) -> bool:
        """False if a decision looks at later tokens or at other rows."""
        del routing
        return True

    def flops(self, *, tokens: int, spans: int) -> int:
        """What deciding costs for so many tokens over so many routed spans, read-outs apart.

        Matrix products of the router, a multiply-add being 2.
        """
        del tokens, spans
        return 0

    def start(self, hidden: Float[Tensor, "batch seq dim"], context: Context) -> State:
        """What to remember from the first routed span on."""
        del hidden, context

    def remember(self, state: State, context: Context) -> Memory | None:
        """What the next call needs to know of this one and those before, with a cache.

        It comes back as `context.previous`. None for decisions that look at nothing but their own
        token and what attention brings to it.
        """
        del state, context
        return None

    @abstractmethod
    def decide(
        self,
        span: Span,
        hidden: Float[Tensor, "batch seq dim"],
        state: State,
        context: Context,
    ) -> tuple[Decision, State]:
        """What to do with each row in this span, and what to remember."""


def unread(rows: Tensor) -> Tensor:
    """The `read` of a context in which nothing can be read."""
    raise AssertionError("a read-out was asked for outside a decision")


def unwatched(visit: int, make: Callable[[], Tensor]) -> None:
    """The `watch` of a context whose states nobody collects."""
    del visit, make


def check_routing(policy: Policy, routing: str | None) -> Routing:
    """The routing to use.

    Raises:
        ValueError: one that the policy does not have.
    """
    if routing is None:
        return policy.routings[0]
    for known in policy.routings:
        if routing == known:
            return known
    raise ValueError(
        f"routing: got {routing!r}; {type(policy).__name__} has {', '.join(policy.routings)}"
    )


def kept_rows(decision: Decision, mask: Bool[Tensor, "batch seq"]) -> Bool[Tensor, "batch seq"]:
    """Rows that run: the kept ones that are not padding."""
    return mask if decision.keep is None else mask & decision.keep


def broadcast(weight: Tensor, rows: Tensor) -> Tensor:
    """A weight per row against (…, dim), in the dtype of the rows."""
    return weight[..., None].to(rows.dtype)
