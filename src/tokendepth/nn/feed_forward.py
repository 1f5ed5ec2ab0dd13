"""The feed-forward layer, gated (Shazeer, 2020) or plain, row by row."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardConfig:
    """Sizes and variants of one feed-forward layer."""

    width: int
    inner: int
    gated: bool = True
    activation: Activation = "silu"
    bias: bool = False
    dropout: float = 0.0
    """Of the output, in training mode."""


class FeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate."""

    def __init__(self, config: FeedForwardConfig) -> None:
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        width, inner, bias = config.width, config.inner, config.bias
        self.gate = nn.Linear(width, inner, bias=bias) if config.gated else None
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """The update of each row."""
        if self.gate is None:
            inner = self.activation(self.up(rows))
        else:
            inner = self.activation(self.gate(rows)) * self.up(rows)
        return functional.dropout(self.down(inner), self.config.dropout, self.training)
