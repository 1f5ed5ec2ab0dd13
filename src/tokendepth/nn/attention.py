"""Causal attention over stored keys, with grouped key-value heads."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from tokendepth.nn.norm import rms_norm
from tokendepth.nn.rotary import Turn, rotate
from tokendepth.numerics import wide


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Sizes and variants of one attention layer."""

    width: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    bias: bool = False
    """Of queries, keys and values."""
    output_bias: bool = False
    query_key_norm: bool = False
    """Normalise each head's query and key before they are turned (Qwen 3, Gemma 3)."""
    norm_epsilon: float = 1e-5
    gains_from_one: bool = False
    """The norms of queries and keys store their gains as distances from one (Gemma 3)."""
    window: int | None = None
    """How many positions a query sees, its own included; None for all before it."""
    scale: float | None = None
    """Factor on query times key; 1 / sqrt(head_dim) by default."""
    cap: float | None = None
    """Scores x become cap * tanh(x / cap) (Gemma 2)."""
    dropout: float = 0.0
    """Of attention weights and of the output, in training mode."""


class Attention(nn.Module):
    """Projections and the weighted sum; which keys a query sees is decided by the caller.

    All projections work on rows of any leading shape, so that they run on gathered rows alone.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        width, heads = config.width, config.num_heads * config.head_dim
        stored = config.num_key_value_heads * config.head_dim
        self.query = nn.Linear(width, heads, bias=config.bias)
        self.key = nn.Linear(width, stored, bias=config.bias)
        self.value = nn.Linear(width, stored, bias=config.bias)
        self.output = nn.Linear(heads, width, bias=config.output_bias)
        self.query_norm = _head_norm(config) if config.query_key_norm else None
        self.key_norm = _head_norm(config) if config.query_key_norm else None

    def queries(self, normed: Float[Tensor, "*rows dim"], turn: Turn | None) -> Tensor:
        """Turned queries, (*rows, head, head_dim)."""
        heads = self.query(normed).unflatten(-1, (self.config.num_heads, self.config.head_dim))
        return _placed(heads, self.query_norm, turn)

    def keys_values(
        self, normed: Float[Tensor, "*rows dim"], turn: Turn | None
    ) -> tuple[Tensor, Tensor]:
        """Turned keys, and values, each (*rows, key_value_head, head_dim)."""
        shape = (self.config.num_key_value_heads, self.config.head_dim)
        keys = _placed(self.key(normed).unflatten(-1, shape), self.key_norm, turn)
        return keys, self.value(normed).unflatten(-1, shape)

    def attend(
        self,
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
            visible: which slots a query sees; None for slots in the order of the queries, all of
                them there, the last query seeing all slots, each one before it a slot less. A query
                that sees nothing gives zeros.
        """
        dropout = self.config.dropout if self.training else 0.0
        if queries.shape[1] == 1 and self.config.cap is None:
            return _single(self.config, queries, keys, values, visible, dropout)
        if self.config.cap is not None:
            mixed = _capped(self.config, queries, keys, values, visible, dropout)
        else:
            mixed = functional.scaled_dot_product_attention(
                queries.transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=None if visible is None else visible.unsqueeze(1),
                dropout_p=dropout,
                is_causal=visible is None and queries.shape[1] > 1,
                scale=self.config.scale,
                enable_gqa=queries.shape[2] != keys.shape[2],
            )
        return _answered(mixed, visible).transpose(1, 2).flatten(2)

    def project(self, mixed: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows dim"]:
        """The update that the attention output becomes."""
        update = self.output(mixed)
        return functional.dropout(update, self.config.dropout, self.training)


def _head_norm(config: AttentionConfig) -> nn.Module:
    return rms_norm(config.head_dim, config.norm_epsilon, from_one=config.gains_from_one)


def _placed(heads: Tensor, norm: nn.Module | None, turn: Turn | None) -> Tensor:
    """Normalised, where the family does so, and turned by position, where it does that."""
    heads = heads if norm is None else norm(heads)
    return heads if turn is None else rotate(heads, turn)


def _answered(mixed: Tensor, visible: Tensor | None) -> Tensor:
    """Zeros for a query without keys, which not every GPU kernel gives."""
    if visible is None or mixed.device.type == "cpu":
        return mixed
    return torch.where(visible.any(dim=-1)[:, None, :, None], mixed, 0.0)


def _single(
    config: AttentionConfig,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    dropout: float,
) -> Float[Tensor, "batch one width"]:
    """One query a row: heads that share keys become queries of one head, which reads them once."""
    mixed = functional.scaled_dot_product_attention(
        queries.view(queries.shape[0], keys.shape[2], -1, queries.shape[3]),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=None if visible is None else visible.unsqueeze(1),
        dropout_p=dropout,
        scale=config.scale,
    )
    return _answered(mixed, visible).flatten(1).unsqueeze(1)


def _capped(
    config: AttentionConfig,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    dropout: float,
) -> Float[Tensor, "batch head query head_dim"]:
    """Attention with capped scores, which no fused kernel offers on every device."""
    assert config.cap is not None
    scale = config.head_dim**-0.5 if config.scale is None else config.scale
    group = queries.shape[2] // keys.shape[2]
    keys, values = (part.repeat_interleave(group, dim=2).transpose(1, 2) for part in (keys, values))
    scores = queries.transpose(1, 2) @ keys.transpose(2, 3) * scale
    scores = config.cap * torch.tanh(scores / config.cap)
    if visible is None:
        slots = scores.new_ones(scores.shape[-2:], dtype=torch.bool)
        visible = slots.tril(scores.shape[-1] - scores.shape[-2])[None]
    hidden = ~visible[:, None]
    weights = wide(scores).masked_fill(hidden, -torch.inf).softmax(dim=-1)
    weights = weights.masked_fill(hidden, 0.0).to(values.dtype)
    return functional.dropout(weights, dropout) @ values
