"""Watch a model's blocks run, and leave no trace of having watched.

State k is the residual stream after k blocks have run: state 0 enters block 0, state k leaves
block k-1. All of them are taken before the final norm.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


class _LastStateReached(Exception):
    """Ends a forward pass in which no further block is needed."""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; train/eval flags and random state as before outside.

    Holds after an exception and after Ctrl-C as well.
    """
    flags = [(module, module.training) for module in model.modules()]
    devices = {
        parameter.device.index or 0
        for parameter in model.parameters()
        if parameter.device.type == "cuda"
    }
    with torch.random.fork_rng(devices=sorted(devices)):
        try:
            model.eval()
            yield
        finally:
            for module, training in flags:
                module.training = training


@contextmanager
def recording(
    blocks: Sequence[nn.Module], wanted: Sequence[int], *, stop: bool
) -> Iterator[dict[int, Tensor]]:
    """Fill the yielded dictionary with the wanted states of forward passes run inside.

    Args:
        blocks: the model's blocks, in order.
        wanted: state indices, 0 to len(blocks).
        stop: end the pass as soon as the last wanted state is there; a forward pass then
            returns nothing, since it ends by an exception that this context absorbs.
    """
    states: dict[int, Tensor] = {}
    last = max(wanted)

    def keep(index: int, value: Any) -> None:
        if index in wanted:
            states[index] = hidden_of(value)
        if stop and index == last:
            raise _LastStateReached

    def before_first(module: nn.Module, args: tuple, kwargs: dict) -> None:
        del module
        keep(0, args[0] if args else kwargs["hidden_states"])

    def after(index: int):
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            del module, args
            keep(index, output)

        return hook

    with ExitStack() as hooks:
        handle = blocks[0].register_forward_pre_hook(before_first, with_kwargs=True)
        hooks.callback(handle.remove)
        for number, block in enumerate(blocks, start=1):
            hooks.callback(block.register_forward_hook(after(number)).remove)
        with suppress(_LastStateReached):
            yield states


def hidden_of(output: Any) -> Tensor:
    """The hidden states in what a block returned: a tensor, tuple, dictionary or dataclass.

    Raises:
        ValueError: no tensor is found in it.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        candidates = [output.get("hidden_states"), *output.values()]
    elif isinstance(output, tuple | list):
        candidates = list(output)
    elif is_dataclass(output):
        named = {field.name: getattr(output, field.name) for field in fields(output)}
        candidates = [named.get("hidden_states"), *named.values()]
    else:
        candidates = []
    for candidate in candidates:
        if isinstance(candidate, Tensor):
            return candidate
    raise ValueError(
        f"blocks: a block returned {type(output).__name__}, in which no hidden states were found; "
        "a block must return a tensor, or a tuple, dictionary or dataclass that begins with one"
    )
