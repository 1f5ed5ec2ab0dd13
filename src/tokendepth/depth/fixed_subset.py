"""The same routed spans run for every token: a smaller model cut out of a larger one. A control."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.types import Decision, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSubsetConfig:
    """Of `FixedSubset`."""

    skipped: tuple[int, ...]
    """Spans of the schedule that no token runs, counted from 0; each must be routed."""

    def build(self, host: Host) -> "FixedSubset":
        """The policy."""
        spans = host.schedule.spans
        for index in self.skipped:
            if not 0 <= index < len(spans) or not spans[index].routed:
                routed = [place for place, span in enumerate(spans) if span.routed]
                raise ValueError(f"skipped: got {index}; the routed spans are {routed}")
        return FixedSubset(self)


class FixedSubset(Policy):
    """Some routed spans run for no token, the others for all.

    Args:
        config: which do not run; `evaluation.subset.best_subset` finds the ones missed least.
    """

    control: ClassVar[bool] = True

    def __init__(self, config: FixedSubsetConfig) -> None:
        super().__init__()
        self.config, self.skipped = config, frozenset(config.skipped)

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """All rows or none."""
        del span, hidden
        if context.span_index not in self.skipped:
            return Decision(), state
        return Decision(keep=torch.zeros_like(context.mask)), state
