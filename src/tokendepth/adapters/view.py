"""A model as the measures see it, whoever wrote it.

State k is the residual stream after k block executions, 0 to L, before the final norm.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

PROBE_TOKENS = 8


@runtime_checkable
class View(Protocol):
    """States, read-out and sizes of a causal language model, which is never changed."""

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        ...

    @property
    def num_layers(self) -> int:
        """L, the number of block executions; the states are numbered 0 to L."""
        ...

    @property
    def embedding_rows(self) -> int:
        """Token ids are 0 to this number less one."""
        ...

    @property
    def width(self) -> int:
        """Size of a state."""
        ...

    @property
    def max_positions(self) -> int | None:
        """The longest text that fits, in tokens; None where there is no bound."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        ...

    @property
    def device(self) -> torch.device:
        """Where token ids are expected."""
        ...

    def states(
        self, input_ids: Tensor, attention_mask: Tensor | None, wanted: Sequence[int]
    ) -> dict[int, Tensor]:
        """The wanted states (batch, seq, dim); nothing after the last of them is run."""
        ...

    def last_state_and_logits(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """State L and the model's own logits, of one whole forward pass."""
        ...

    def read_out(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token vocab"]:
        """Logits that the model would give if the given states were its last ones."""
        ...

    def normed(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token out"]:
        """What the unembedding would read if the given states were the last ones."""
        ...

    def source_of(self, state: int) -> tuple[str, nn.Module]:
        """What computed a state: its name and module."""
        ...

    def describe(self) -> str:
        """The read-out in words."""
        ...


def check_ids(view: View, input_ids: Tensor) -> None:
    """Raise a `ValueError` when an id has no row in the embedding."""
    if input_ids.numel() == 0:
        return
    for worst in (int(input_ids.max()), int(input_ids.min())):
        if not 0 <= worst < view.embedding_rows:
            raise ValueError(
                f"input_ids: got the token id {worst}; the model's embedding has rows 0 to "
                f"{view.embedding_rows - 1}. Tokenizer and model do not belong together: "
                "take the tokenizer saved with this model."
            )


def probe_ids(rows: int, device: torch.device) -> Int[Tensor, "1 seq"]:
    """A few random token ids, always the same, drawn without touching the global generator."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(rows, (1, PROBE_TOKENS), generator=generator).to(device)
