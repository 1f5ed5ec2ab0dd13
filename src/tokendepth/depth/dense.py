"""Every token runs every block: the model as it is."""

from dataclasses import dataclass

from torch import Tensor

from tokendepth.depth.base import Context, Host, Policy, State
from tokendepth.types import PLAIN, Decision, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """Of `Dense`; there is nothing to choose."""

    def build(self, host: Host) -> "Dense":
        """The policy."""
        del host
        return Dense()


class Dense(Policy):
    """The neutral policy."""

    blind = True

    def __init__(self) -> None:
        super().__init__()
        self.config = DenseConfig()

    def decide(
        self, span: Span, hidden: Tensor, state: State, context: Context
    ) -> tuple[Decision, State]:
        """Nothing: the plain block."""
        del span, hidden, context
        return PLAIN, state
