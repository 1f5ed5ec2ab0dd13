"""A pre-norm block as its parts; an executor says for which rows they run."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from tokendepth.nn.attention import Attention
from tokendepth.nn.feed_forward import FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """The norms of a block."""

    attention: nn.Module
    feed_forward: nn.Module | None
    """None where a parallel block has one norm for both halves (GPT-J, Phi)."""
    attention_post: nn.Module | None = None
    """Of the update itself, before it is added (sandwich norms)."""
    feed_forward_post: nn.Module | None = None


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); both of the same x if parallel.

    It has no `forward` of its own: whether a row is skipped, weighted or only gives keys and
    values is not the block's business.
    """

    def __init__(
        self, norms: Norms, attention: Attention, feed_forward: FeedForward, *, parallel: bool
    ) -> None:
        super().__init__()
        assert parallel or norms.feed_forward is not None
        self.parallel = parallel
        self.windowed = attention.config.window is not None
        self.attention_norm = norms.attention
        self.attention = attention
        self.attention_post_norm = norms.attention_post
        self.feed_forward_norm = norms.feed_forward
        self.feed_forward = feed_forward
        self.feed_forward_post_norm = norms.feed_forward_post

    def attention_update(self, mixed: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows dim"]:
        """What attention adds to the residual."""
        update = self.attention.project(mixed)
        return update if self.attention_post_norm is None else self.attention_post_norm(update)

    def feed_forward_source(self, before: Tensor, normed: Tensor, after: Tensor) -> Tensor:
        """What the feed-forward half starts from, row by row.

        Args:
            before: the rows as they entered the block.
            normed: the attention's input.
            after: the rows with the attention's update.
        """
        if self.feed_forward_norm is None:
            return normed
        return before if self.parallel else after

    def feed_forward_update(self, source: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """What the feed-forward layer adds to the residual."""
        inner = source if self.feed_forward_norm is None else self.feed_forward_norm(source)
        update = self.feed_forward(inner)
        return (
            update if self.feed_forward_post_norm is None else self.feed_forward_post_norm(update)
        )
