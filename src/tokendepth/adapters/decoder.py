"""Our own decoder as the measures see it; the loops of a looped one are its layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendepth.adapters.view import check_ids
from tokendepth.models.decoder import Decoder
from tokendepth.numerics import wide


@dataclass(frozen=True, kw_only=True)
class DecoderView:
    """A decoder under its own schedule and policy."""

    model: Decoder

    @property
    def max_positions(self) -> int | None:
        """The longest text that the weights were trained for."""
        return self.model.config.max_positions

    @property
    def num_layers(self) -> int:
        """Block executions of the schedule."""
        return len(self.model.schedule.visits)

    @property
    def embedding_rows(self) -> int:
        """The vocabulary."""
        return self.model.config.vocab_size

    @property
    def width(self) -> int:
        """Size of a state."""
        return self.model.config.width

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.model.embedding.weight.device

    def states(
        self, input_ids: Tensor, attention_mask: Tensor | None, wanted: Sequence[int]
    ) -> dict[int, Tensor]:
        """The wanted states; spans after the last of them are not run."""
        check_ids(self, input_ids)
        return self.model.states(input_ids, attention_mask, wanted)

    def last_state_and_logits(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """State L and the logits."""
        output = self.model(input_ids, collect=(self.num_layers,))
        return output.states[self.num_layers], output.logits

    def read_out(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token vocab"]:
        """Final norm and head, in float32 or float64."""
        if self.model.policy.read_out is not None:
            raise ValueError(
                f"policy: {type(self.model.policy).__name__} brings a read-out of its own, which "
                "needs the depth of each row; measure the decoder under Dense() instead"
            )
        return wide(self.model.read_out(states))

    def normed(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token dim"]:
        """After the final norm."""
        return self.model.final_norm(states)

    def source_of(self, state: int) -> tuple[str, nn.Module]:
        """What computed a state: its name and module."""
        if state == 0:
            return "the embedding", self.model.embedding
        index, block = self.model.schedule.visits[state - 1]
        loop = self.model.schedule.spans[index].loop
        return f"block {block}, loop {loop}", self.model.blocks[block]

    def describe(self) -> str:
        """The read-out in words."""
        schedule = self.model.schedule
        spans = ", ".join(f"{span.blocks} loop {span.loop}" for span in schedule.spans)
        return (
            f"block executions={self.num_layers} ({spans}; start {schedule.start}), policy="
            f"{type(self.model.policy).__name__}, final_norm=final_norm, unembed=head"
        )
