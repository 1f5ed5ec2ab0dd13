"""The same gate for every token: what damping alone does, without any routing. A control."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.depth.shares import Shares, check_each, each_here, each_routed
from tokendepth.types import Decision, Routing, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantGateConfig:
    """Of `ConstantGate`."""

    weight: Shares
    """Of every update of a routed span, one for all or one for each; 0 to 1."""

    def __post_init__(self) -> None:
        check_each("weight", self.weight)

    def build(self, host: Host) -> "ConstantGate":
        """The policy."""
        each_routed("weight", self.weight, sum(span.routed for span in host.schedule.spans))
        return ConstantGate(self)


class ConstantGate(Policy):
    """Each routed block's updates are damped alike for all tokens; nothing is skipped.

    Args:
        config: the weight, or a learned policy's mean one of each span.
    """

    routings: ClassVar[tuple[Routing, ...]] = ("soft",)
    control: ClassVar[bool] = True

    def __init__(self, config: ConstantGateConfig) -> None:
        super().__init__()
        self.config, self.weight = config, config.weight

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """The weight of this span.

        Raises:
            ValueError: a schedule with another number of routed spans.
        """
        del span
        weight = each_here("weight", self.weight, context)
        kind = torch.promote_types(hidden.dtype, torch.float32)
        return Decision(
            weight=torch.full(hidden.shape[:2], weight, dtype=kind, device=hidden.device)
        ), state
