"""A pre-norm block as its parts; an executor says for which rows they run."""

from torch import nn

from tokendepth.nn.attention import Attention
from tokendepth.nn.feed_forward import GatedFeedForward


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

    It has no `forward` of its own: whether a row is skipped, weighted or only gives keys and
    values is not the block's business.
    """

    def __init__(
        self,
        attention_norm: nn.Module,
        attention: Attention,
        feed_forward_norm: nn.Module,
        feed_forward: GatedFeedForward,
    ) -> None:
        super().__init__()
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward
