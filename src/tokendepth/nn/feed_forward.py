"""The gated feed-forward layer (Shazeer, 2020) of the Llama family."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class GatedFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), row by row."""

    def __init__(self, width: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """The update of each row."""
        return self.down(functional.silu(self.gate(rows)) * self.up(rows))
