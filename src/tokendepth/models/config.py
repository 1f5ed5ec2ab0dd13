"""What a decoder is made of."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from tokendepth.types import KeyValueRule


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
    rotary_base: float = 10_000.0
    rotary_scaling: float = 1.0
    norm_epsilon: float = 1e-5
    attention_bias: bool = False
    feed_forward_bias: bool = False
    tied_head: bool = True
    adapter: bool = False
    """A linear layer (2 width -> width) for schedules that inject."""
    max_positions: int | None = None
    """The longest text that the weights were trained for, in tokens; measures cut longer ones."""
    key_value_rule: KeyValueRule = "all"
    """Keys and values of skipped rows: from the frozen state, absent, or the last ones computed."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "num_blocks", "num_heads", "head_dim", "inner_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}; it must be at least 1")
        if self.num_key_value_heads < 1 or self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads: got {self.num_key_value_heads}; it must divide num_heads "
                f"({self.num_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: got {self.head_dim}; rotary positions need an even number")
        if self.key_value_rule not in ("all", "kept", "carried"):
            raise ValueError(
                f"key_value_rule: got {self.key_value_rule!r}; allowed are all, kept, carried"
            )

    def to_json(self) -> str:
        """All fields, as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)


def read_config(text: str) -> DecoderConfig:
    """A config from its JSON.

    Raises:
        ValueError: an unknown or a missing field, by name.
    """
    given: dict[str, Any] = json.loads(text)
    known = {field.name: field for field in dataclasses.fields(DecoderConfig)}
    unknown = sorted(set(given) - set(known))
    missing = sorted(
        name
        for name, field in known.items()
        if name not in given and field.default is dataclasses.MISSING
    )
    if unknown or missing:
        raise ValueError(
            f"config: unknown fields {unknown}, missing fields {missing}; known are {list(known)}"
        )
    return DecoderConfig(**given)
