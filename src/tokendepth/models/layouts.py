"""How other libraries store the weights that we keep as one plain matrix a projection.

A layout works alike on weights and biases, whose first dimension is that of the outputs, and goes
both ways without a loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendepth.models.config import DecoderConfig

_QUERY_KEY_VALUE = ("attention.query", "attention.key", "attention.value")
_OPT_OFFSET = 2


@dataclass(frozen=True, slots=True)
class Part:
    """One module of theirs, and the modules of ours that hold the same weights."""

    ours: tuple[str, ...]
    split: Callable[[Tensor, DecoderConfig], Sequence[Tensor]]
    """Theirs to ours."""
    join: Callable[[Sequence[Tensor], DecoderConfig], Tensor]
    """Ours to theirs."""


def plain(name: str) -> Part:
    """The same on both sides."""
    return Part((name,), lambda theirs, config: (theirs,), lambda ours, config: ours[0])


def transposed(name: str) -> Part:
    """GPT-2 stores weights as (in, out)."""
    return Part((name,), lambda theirs, config: (theirs.t(),), lambda ours, config: ours[0].t())


def fused_transposed() -> Part:
    """GPT-2: queries, keys and values one after the other, and (in, out)."""
    return Part(
        _QUERY_KEY_VALUE,
        lambda theirs, config: theirs.t().chunk(3),
        lambda ours, config: torch.cat(list(ours)).t(),
    )


def fused_by_head() -> Part:
    """GPT-NeoX: query, key and value of the first head, then those of the next."""

    def split(theirs: Tensor, config: DecoderConfig) -> Sequence[Tensor]:
        heads = theirs.unflatten(0, (config.num_heads, 3, config.head_dim))
        return [part.flatten(0, 1) for part in heads.unbind(1)]

    def join(ours: Sequence[Tensor], config: DecoderConfig) -> Tensor:
        heads = [part.unflatten(0, (config.num_heads, config.head_dim)) for part in ours]
        return torch.stack(heads, dim=1).flatten(0, 2)

    return Part(_QUERY_KEY_VALUE, split, join)


def paired(name: str) -> Part:
    """GPT-J: features that turn into each other lie side by side; ours, half a head apart."""

    def swap(rows: Tensor, config: DecoderConfig, shape: tuple[int, int]) -> Tensor:
        heads = rows.unflatten(0, (-1, config.head_dim))
        turned, still = heads.split([config.turned_width, config.head_dim - config.turned_width], 1)
        swapped = turned.unflatten(1, shape).transpose(1, 2).flatten(1, 2)
        return torch.cat((swapped, still), dim=1).flatten(0, 1)

    def split(theirs: Tensor, config: DecoderConfig) -> Sequence[Tensor]:
        return (swap(theirs, config, (config.turned_width // 2, 2)),)

    def join(ours: Sequence[Tensor], config: DecoderConfig) -> Tensor:
        return swap(ours[0], config, (2, config.turned_width // 2))

    return Part((name,), split, join)


def offset_positions(name: str) -> Part:
    """OPT: two rows before that of position 0, which no token reads; they go back as zeros."""

    def join(ours: Sequence[Tensor], config: DecoderConfig) -> Tensor:
        return torch.cat((ours[0].new_zeros(_OPT_OFFSET, config.width), ours[0]))

    return Part((name,), lambda theirs, config: (theirs[_OPT_OFFSET:],), join)
