"""A policy under a limit of depth: each row runs at most so many blocks."""

from dataclasses import replace
from typing import ClassVar

from jaxtyping import Int
from torch import Tensor

from tokendepth.depth.base import Context, Policy, State
from tokendepth.depth.dense import Dense
from tokendepth.depth.fixed_exit import FixedExit
from tokendepth.nn.cache import Memory
from tokendepth.types import PLAIN, Decision, Routing, Span


def limited(policy: Policy, depth: int | Int[Tensor, " batch"]) -> Policy:
    """The policy under a limit; the limit alone where the policy runs every block anyway."""
    return FixedExit(depth) if isinstance(policy, Dense) else Limited(policy, depth)


class Limited(Policy):
    """What another policy decides, up to a depth; beyond it no row runs but in the coda.

    Args:
        policy: whose decisions, weights, penalties and read-out these are.
        depth: as `FixedExit`: block executions, one number or one a row.
    """

    control: ClassVar[bool] = False

    def __init__(self, policy: Policy, depth: int | Int[Tensor, " batch"]) -> None:
        super().__init__()
        self.policy, self.limit = policy, FixedExit(depth)
        self.read_out = policy.read_out
        # Those of the policy, whatever its class says.
        self.gates = policy.gates  # pyright: ignore[reportAttributeAccessIssue]
        self.routings = policy.routings  # pyright: ignore[reportAttributeAccessIssue]
        self.blind = policy.blind  # pyright: ignore[reportAttributeAccessIssue]
        self.sticky = policy.sticky  # pyright: ignore[reportAttributeAccessIssue]

    def causal(self, routing: Routing) -> bool:
        """As the policy: a limit given from outside looks at nothing."""
        return self.policy.causal(routing)

    def flops(self, *, tokens: int, spans: int) -> int:
        """As the policy."""
        return self.policy.flops(tokens=tokens, spans=spans)

    def start(self, hidden: Tensor, context: Context) -> State:
        """The policy's state and the depth of each token."""
        return self.policy.start(hidden, context), self.limit.start(hidden, context)

    def remember(self, state: State, context: Context) -> Memory | None:
        """What the policy remembers."""
        return self.policy.remember(state[0], context)

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """The policy's decision, for the rows below their limit."""
        decision, inner = self.policy.decide(span, hidden, state[0], context)
        allowed, limit = self.limit.decide(span, hidden, state[1], context)
        if decision is PLAIN or allowed is PLAIN:
            return (allowed if decision is PLAIN else decision), (inner, limit)
        assert allowed.keep is not None
        keep = allowed.keep if decision.keep is None else decision.keep & allowed.keep
        return replace(decision, keep=keep), (inner, limit)
