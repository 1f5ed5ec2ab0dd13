"""What a decoder is made of."""

from dataclasses import dataclass
from typing import Literal, get_args

from tokendepth.nn.attention import AttentionConfig
from tokendepth.nn.feed_forward import Activation, FeedForwardConfig
from tokendepth.nn.rotary import Stretch
from tokendepth.types import KeyValueRule

_ALLOWED = {
    "norm": ("rms", "layer"),
    "positions": ("rotary", "learned"),
    "activation": get_args(Activation),
    "key_value_rule": get_args(KeyValueRule),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes and kinds of the parts. Weights do not depend on how often blocks run."""

    vocab_size: int
    width: int
    num_blocks: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    inner_width: int
    norm: Literal["rms", "layer"] = "rms"
    norm_epsilon: float = 1e-5
    norm_bias: bool = True
    """Of layer norms; root-mean-square norms have none."""
    gains_from_one: bool = False
    """Root-mean-square norms store their gains as distances from one (Gemma)."""
    post_norms: bool = False
    """Sandwich norms: each half's update is normalised before it is added."""
    bare_post_norms: tuple[int, ...] = ()
    """Blocks whose sandwich norms have no gains; of the others `post_norms` says it."""
    query_key_norm: bool = False
    positions: Literal["rotary", "learned"] = "rotary"
    rotary_width: int | None = None
    """Features of a head that turn, from the first; None for all."""
    rotary_base: float = 10_000.0
    rotary_stretch: Stretch | None = None
    """Slower turns for longer texts; not of the blocks under `window_rotary_base`."""
    rotary_scaling: float = 1.0
    """Factor on cosine and sine."""
    window_rotary_base: float | None = None
    """Of blocks with a window, where it differs."""
    windows: tuple[int | None, ...] = ()
    """How many positions each block's queries see, their own included; () and None for all."""
    attention_bias: bool = False
    """Of queries, keys and values."""
    output_bias: bool = False
    """Of the attention's output."""
    attention_scale: float | None = None
    """Factor on query times key; 1 / sqrt(head_dim) by default."""
    attention_cap: float | None = None
    """Scores x become cap * tanh(x / cap)."""
    parallel: bool = False
    """Both halves of a block read the same state."""
    shared_norm: bool = False
    """Parallel blocks with one norm for both halves."""
    gated: bool = True
    activation: Activation = "silu"
    feed_forward_bias: bool = False
    tied_head: bool = True
    head_bias: bool = False
    logit_cap: float | None = None
    """Logits x become cap * tanh(x / cap)."""
    embedding_scale: float = 1.0
    dropout: float = 0.0
    """Of the embedding, attention weights and both updates, in training mode."""
    adapter: bool = False
    """A linear layer (2 width -> width) for schedules that inject."""
    max_positions: int | None = None
    """The longest text that the weights were trained for, in tokens; measures cut longer ones.
    Learned positions have a table of this size."""
    key_value_rule: KeyValueRule = "all"
    """Keys and values of skipped rows: from the frozen state, absent, or the last ones computed."""
    family: str | None = None
    """What transformers calls the family that the weights came from; `to_transformers` goes back
    to it. Nothing is computed from it."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "num_blocks", "num_heads", "head_dim", "inner_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}; it must be at least 1")
        if self.num_key_value_heads < 1 or self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads: got {self.num_key_value_heads}; it must divide num_heads "
                f"({self.num_heads})"
            )
        for name in ("norm", "positions", "activation", "key_value_rule"):
            if getattr(self, name) not in _ALLOWED[name]:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}; allowed are {', '.join(_ALLOWED[name])}"
                )
        self._check_positions()
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout: got {self.dropout}; it must be at least 0 and below 1")
        beyond = [one for one in self.bare_post_norms if not 0 <= one < self.num_blocks]
        if beyond:
            raise ValueError(
                f"bare_post_norms: got block {beyond[0]}; there are blocks 0 to "
                f"{self.num_blocks - 1}"
            )
        if self.shared_norm and not self.parallel:
            raise ValueError("shared_norm: only blocks with parallel=True can share their norm")
        if self.gains_from_one and self.norm != "rms":
            raise ValueError("gains_from_one: only norm='rms' can store its gains so")

    def _check_positions(self) -> None:
        if self.positions == "learned":
            if self.max_positions is None:
                raise ValueError("max_positions: learned positions need the size of their table")
        elif self.turned_width % 2 or not 0 < self.turned_width <= self.head_dim:
            raise ValueError(
                f"rotary_width: {self.turned_width} features of a head would turn; rotary "
                f"positions need an even number up to head_dim ({self.head_dim})"
            )
        if len(self.windows) not in (0, self.num_blocks):
            raise ValueError(
                f"windows: got {len(self.windows)} for {self.num_blocks} blocks; give one each or "
                "none"
            )
        if any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows: got {self.windows}; a window is at least 1 position")

    @property
    def turned_width(self) -> int:
        """Features of a head that rotary positions turn."""
        return self.head_dim if self.rotary_width is None else self.rotary_width

    def attention(self, block: int) -> AttentionConfig:
        """Of one block's attention."""
        return AttentionConfig(
            width=self.width,
            num_heads=self.num_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            bias=self.attention_bias,
            output_bias=self.output_bias,
            query_key_norm=self.query_key_norm,
            norm_epsilon=self.norm_epsilon,
            gains_from_one=self.gains_from_one,
            window=self.windows[block] if self.windows else None,
            scale=self.attention_scale,
            cap=self.attention_cap,
            dropout=self.dropout,
        )

    @property
    def feed_forward(self) -> FeedForwardConfig:
        """Of every block's feed-forward layer."""
        return FeedForwardConfig(
            width=self.width,
            inner=self.inner_width,
            gated=self.gated,
            activation=self.activation,
            bias=self.feed_forward_bias,
            dropout=self.dropout,
        )
