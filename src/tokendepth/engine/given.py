"""Given decisions before which routers run: what deciding costs, apart from what it saves."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from tokendepth.depth.base import Context, Policy, State
from tokendepth.depth.token_selective import TokenSelective, TokenSelectiveConfig
from tokendepth.models.decoder import Decoder
from tokendepth.types import Decision, Plan, Span


class GivenDecisions(Policy):
    """Routers are asked, and a plan is followed.

    Args:
        policy: whose routers run.
        plan: whose decisions are taken.
    """

    def __init__(self, policy: TokenSelective, plan: Plan) -> None:
        super().__init__()
        self.policy, self.plan = policy, plan

    def flops(self, *, tokens: int, spans: int) -> int:
        """Of the routers."""
        return self.policy.flops(tokens=tokens, spans=spans)

    def start(self, hidden: Float[Tensor, "batch seq dim"], context: Context) -> State:
        """The plan for the tokens of this call."""
        del hidden
        return self.plan.aligned(
            context.schedule, context.row_keys, context.positions, context.mask
        )

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """What the plan says, once the router has spoken."""
        asked, _ = self.policy.decide(span, hidden, None, context)
        given = state.decision(context.span_index)
        return Decision(keep=given.keep, margin=asked.margin), state


def with_routers(decoder: Decoder, plan: Plan, seed: int) -> GivenDecisions:
    """The decoder's own routers, or fresh ones, before given decisions."""
    policy = decoder.policy
    if not isinstance(policy, TokenSelective):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy = TokenSelectiveConfig().build(decoder)
    weight = decoder.embedding.weight
    asked = copy.deepcopy(policy).to(weight.device, weight.dtype)
    return GivenDecisions(asked, plan).eval()
