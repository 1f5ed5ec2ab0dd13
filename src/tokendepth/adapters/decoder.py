"""Our own decoder as the measures see it; the loops of a looped one are its layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        schedule = self.model.schedule
        needed = [
            span
            for span, first in zip(schedule.spans, schedule.first_visit, strict=True)
            if first < max(*wanted, 1)
        ]
        shortened = replace(schedule, spans=tuple(needed))
        return self.model(
            input_ids, attention_mask, schedule=shortened, collect=tuple(wanted)
        ).states

    def last_state_and_logits(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """State L and the logits."""
        output = self.model(input_ids, collect=(self.num_layers,))
        return output.states[self.num_layers], output.logits

    def read_out(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token vocab"]:
        """Final norm and head, in float32 or float64."""
        return wide(self.model.read_out(states))

    def source_of(self, state: int) -> tuple[str, nn.Module]:
        """What computed a state: its name and module."""
        if state == 0:
            return "the embedding", self.model.embedding
        index, block = self.model.schedule.visits[state - 1]
        loop = self.model.schedule.spans[index].loop
        return f"block {block}, loop {loop}", self.model.blocks[block]

    def describe(self) -> str:
        """The read-out in words."""
        return f"block executions={self.num_layers}, final_norm=final_norm, unembed=head"
