"""What the way of few rows knows of a span's blocks, for as long as nothing has changed them."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq, is_

import numpy as np
import torch
from torch import Tensor, nn

from tokendepth.nn.attention import Attention
from tokendepth.nn.block import Block

_PARTS = (
    ("", "attention_norm"), ("attention", "query"), ("attention", "key"), ("attention", "value"),
    ("attention", "output"), ("", "feed_forward_norm"), ("feed_forward", "gate"),
    ("feed_forward", "up"), ("feed_forward", "down"),
)  # fmt: skip
"""Where a block's modules with weights hang, in the order of `nn.few_rows.blocks`."""


Sizes = tuple[int, int, int, int, int]
"""Width, outputs of the queries, of the keys, of one head, of the gate."""


@dataclass(frozen=True)
class Weights:
    """Places and sizes of the weights of blocks, and what shows that they are still the same."""

    blocks: tuple[Block, ...]
    owners: tuple[dict, ...]
    """Where modules and parameters hang ..."""
    names: tuple[str, ...]
    """... under which name ..."""
    found: tuple[object, ...]
    """... and what was there."""
    hooks: tuple[dict, ...]
    sizes: Sizes | None
    """None unless they are Llama blocks of one size, without hooks or replaced parts: others the
    kernels cannot run."""
    weights: tuple[Tensor, ...] = ()
    pointers: tuple[int, ...] = ()
    addresses: np.ndarray | None = None
    """(block, 9), with `numbers` (block, 3) as `nn.few_rows.blocks` has them."""
    numbers: np.ndarray | None = None
    dropping: tuple[Block, ...] = ()
    """Those with dropout."""

    def holds(self, blocks: Sequence[Block]) -> bool:
        """Nothing was replaced, moved or hooked since."""
        return (  # maps, since a loop costs ten times as much, in every step
            all(map(is_, blocks, self.blocks))
            and all(map(is_, map(dict.get, self.owners, self.names), self.found))
            and not any(self.hooks)
            and all(map(eq, map(Tensor.data_ptr, self.weights), self.pointers))
        )


def weights_of(blocks: Sequence[Block]) -> Weights:
    """As they are now."""
    hung = [(owner._modules, name) for block in blocks for owner, name in _owners(block)]
    modules = [owner.get(name) for owner, name in hung]
    inner = [part for block in blocks for part in (block, block.attention, block.feed_forward)]
    watching = [part for part in (*inner, *modules) if part is not None]
    hooks = [each for one in watching for each in (one._forward_hooks, one._forward_pre_hooks)]
    untouched = all(map(_is_plain, blocks)) and not any(hooks) and all(map(is_untouched, modules))
    sizes = _sizes(blocks, modules) if untouched else None
    hung += [(block._modules, name) for block in blocks for name in ("attention", "feed_forward")]
    if sizes is not None:
        hung += [(part._parameters, "weight") for part in modules if part is not None]
    owners, names = zip(*hung, strict=True)
    facts = {} if sizes is None else _facts(blocks, modules)
    return Weights(
        blocks=tuple(blocks),
        owners=owners,
        names=names,
        found=tuple(map(dict.get, owners, names)),
        hooks=tuple(hooks),
        sizes=sizes,
        **facts,
    )


def _owners(block: Block) -> list[tuple[nn.Module, str]]:
    inner = {"": block, "attention": block.attention, "feed_forward": block.feed_forward}
    return [(inner[owner], name) for owner, name in _PARTS]


def _sizes(blocks: Sequence[Block], modules: Sequence[nn.Module | None]) -> Sizes | None:
    """Of untouched blocks, if all are of one size and all weights fit: kernels do not look."""
    shapes = [tuple(part.get_parameter("weight").shape) for part in modules if part is not None]
    width, queries, groups, inner = (shapes[at][0] for at in (0, 1, 2, 6))
    fitting = [
        (width,), (queries, width), (groups, width), (groups, width), (width, queries),
        (width,), (inner, width), (inner, width), (width, inner),
    ]  # fmt: skip
    head_dims = {block.attention.config.head_dim for block in blocks}
    if len(head_dims) > 1 or width % 2 or shapes != fitting * len(blocks):
        return None
    return width, queries, groups, head_dims.pop(), inner


def _facts(blocks: Sequence[Block], modules: Sequence[nn.Module | None]) -> dict:
    """Of blocks that fit, what else the kernels want."""
    weights = tuple(part.get_parameter("weight") for part in modules if part is not None)
    pointers = tuple(weight.data_ptr() for weight in weights)
    numbers = [
        (_epsilon(block.attention_norm), _scale(block.attention), _epsilon(block.feed_forward_norm))
        for block in blocks
    ]
    return {
        "weights": weights,
        "pointers": pointers,
        "addresses": np.array(pointers).reshape(len(blocks), len(_PARTS)),
        "numbers": np.array(numbers, np.float32),
        "dropping": tuple(block for block in blocks if block.feed_forward.config.dropout),
    }


def _is_plain(block: Block) -> bool:
    """A Llama block: no biases, caps, windows, or norms but the two; rotary over whole heads."""
    attention, layer = block.attention.config, block.feed_forward.config
    return not (
        block.parallel
        or block.windowed
        or attention.bias
        or attention.output_bias
        or attention.query_key_norm
        or attention.cap is not None
        or layer.bias
        or not layer.gated
        or layer.activation != "silu"
        or block.attention_post_norm is not None
    )


def is_untouched(part: nn.Module | None) -> bool:
    """A linear layer without bias or a root-mean-square norm, float32, as torch has it."""
    if part is None or type(part) not in (nn.Linear, nn.RMSNorm):
        return False
    if part._parameters.get("bias") is not None:
        return False
    weight = part._parameters["weight"]
    return weight is not None and weight.dtype is torch.float32 and weight.is_contiguous()


def _epsilon(norm: nn.Module | None) -> float:
    assert isinstance(norm, nn.RMSNorm)
    return norm.eps or torch.finfo(torch.float32).eps


def _scale(attention: Attention) -> float:
    return attention.config.scale or attention.config.head_dim**-0.5
