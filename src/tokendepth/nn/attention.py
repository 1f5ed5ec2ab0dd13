"""Causal attention over stored keys, with grouped key-value heads."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from tokendepth.nn.rotary import Turn, rotate


class Attention(nn.Module):
    """Projections and the weighted sum; which keys a query sees is decided by the caller.

    All projections work on rows of any leading shape, so that they run on gathered rows alone.
    """

    def __init__(
        self, width: int, num_heads: int, num_key_value_heads: int, head_dim: int, bias: bool
    ) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        self.head_dim = head_dim
        self.query = nn.Linear(width, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(width, num_key_value_heads * head_dim, bias=bias)
        self.value = nn.Linear(width, num_key_value_heads * head_dim, bias=bias)
        self.output = nn.Linear(num_heads * head_dim, width, bias=bias)

    def queries(self, normed: Float[Tensor, "*rows dim"], turn: Turn) -> Tensor:
        """Turned queries, (*rows, head, head_dim)."""
        heads = self.query(normed).unflatten(-1, (self.num_heads, self.head_dim))
        return rotate(heads, turn)

    def keys_values(self, normed: Float[Tensor, "*rows dim"], turn: Turn) -> tuple[Tensor, Tensor]:
        """Turned keys, and values, each (*rows, key_value_head, head_dim)."""
        shape = (self.num_key_value_heads, self.head_dim)
        keys = rotate(self.key(normed).unflatten(-1, shape), turn)
        return keys, self.value(normed).unflatten(-1, shape)


def attend(
    queries: Float[Tensor, "batch query head head_dim"],
    keys: Float[Tensor, "batch slot key_value_head head_dim"],
    values: Float[Tensor, "batch slot key_value_head head_dim"],
    visible: Bool[Tensor, "batch query slot"] | None,
) -> Float[Tensor, "batch query width"]:
    """The attention output before its projection.

    Args:
        queries: already turned.
        keys: already turned; slots that no query sees must hold finite numbers.
        values: likewise.
        visible: which slots a query sees; None for slots in the order of the queries, all of them
            there, each query seeing itself and those before. A query that sees nothing gives zeros.
    """
    mixed = functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=None if visible is None else visible.unsqueeze(1),
        is_causal=visible is None and queries.shape[1] > 1,
        enable_gqa=queries.shape[2] != keys.shape[2],
    )
    if visible is not None and mixed.device.type != "cpu":
        # Not every GPU kernel gives zeros for a query without keys.
        mixed = torch.where(visible.any(dim=-1)[:, None, :, None], mixed, 0.0)
    return mixed.transpose(1, 2).flatten(2)
