"""Every token runs every block: the model as it is."""

from torch import Tensor

from tokendepth.depth.base import Context, Policy, State
from tokendepth.types import PLAIN, Decision, Span


class Dense(Policy):
    """The neutral policy."""

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """Nothing: the plain block."""
        del span, hidden, context
        return PLAIN, state
