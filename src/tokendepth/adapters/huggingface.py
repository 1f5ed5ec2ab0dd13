"""Any causal language model of transformers, its parts found by structure.

The parts are found without naming a class, so that a family nobody listed works too: the
blocks are the one `ModuleList` of the decoder that has as many members as the model has layers;
the final norm is whatever runs between the last block and the unembedding in one probe pass.
What is found is a claim; `tokendepth.measure.lens.Lens` proves it before anything is measured.
"""

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tokendepth.adapters.recording import recording, undisturbed
from tokendepth.adapters.view import check_ids, probe_ids
from tokendepth.numerics import wide


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Where the parts of a model lie, for a model in which they are not found by structure."""

    blocks: str | None = None
    """Path of the `ModuleList` of blocks, such as `transformer.h`."""
    final_norm: str | None = None
    """Path of the module that runs between the last block and the unembedding."""
    unembed: str | None = None
    """Path of the linear layer (or embedding) that turns states into logits."""
    logit_scale: float | None = None
    """Factor on the logits."""
    logit_softcap: float | None = None
    """Cap c of `c * tanh(logits / c)`."""


@dataclass(frozen=True, kw_only=True)
class HuggingFaceView:
    """The parts of a causal language model. The model itself is never changed."""

    model: nn.Module
    blocks: tuple[nn.Module, ...]
    block_path: str
    tail: tuple[nn.Module, ...]
    """What runs between the last block and the unembedding, in order: the final norm, and in
    some families a projection."""
    tail_paths: tuple[str, ...]
    unembed: nn.Module
    unembed_path: str
    embedding_rows: int
    width: int
    max_positions: int | None
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    @property
    def num_layers(self) -> int:
        """L, the number of blocks; the states are numbered 0 to L."""
        return len(self.blocks)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of the embedding, where token ids are expected."""
        return next(self.model.parameters()).device

    @cached_property
    def _accepts_positions(self) -> bool:
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def run(
        self,
        input_ids: Int[Tensor, "batch seq"],
        attention_mask: Int[Tensor, "batch seq"] | None = None,
    ) -> Any:
        """The model's own forward pass without a cache; positions come from the mask, per row.

        Raises:
            ValueError: a token id beyond the rows of the embedding.
        """
        check_ids(self, input_ids)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
        if self._accepts_positions:
            inputs["position_ids"] = (attention_mask.cumsum(-1) - 1).clamp_min(0)
        return self.model(**inputs)

    def read_out(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token vocab"]:
        """Logits that the model would give if the given states were its last ones.

        Exactly the model's own arithmetic, final norm included, so that the last state gives the
        model's logits. Returned in float32 (float64 for a float64 model).
        """
        states = self.normed(states)
        if isinstance(self.unembed, nn.Embedding):
            logits = functional.linear(states, self.unembed.weight)
        else:
            logits = self.unembed(states)
        logits = logits * self.logit_scale if self.logit_scale != 1.0 else logits
        if self.logit_softcap is not None:
            logits = self.logit_softcap * torch.tanh(logits / self.logit_softcap)
        return wide(logits)

    def normed(self, states: Float[Tensor, "token dim"]) -> Float[Tensor, "token out"]:
        """What the unembedding would read if the given states were the last ones."""
        for module in self.tail:
            states = module(states)
        return states

    def states(
        self, input_ids: Tensor, attention_mask: Tensor | None, wanted: Sequence[int]
    ) -> dict[int, Tensor]:
        """The wanted states; blocks after the last of them, and the head, are not run."""
        with recording(self.blocks, wanted, stop=True) as found:
            self.run(input_ids, attention_mask)
        return found

    def last_state_and_logits(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """State L and the model's own logits, of one whole forward pass."""
        with recording(self.blocks, [self.num_layers], stop=False) as found:
            logits = self.run(input_ids).logits
        return found[self.num_layers], logits

    def source_of(self, state: int) -> tuple[str, nn.Module]:
        """What computed a state: its name and module."""
        if state == 0:
            return "the embedding", self.model
        name = f"block {state - 1} ({self.block_path}.{state - 1})"
        return name, self.blocks[state - 1]

    def describe(self) -> str:
        """The read-out in words, for error messages and results."""
        norm = ", ".join(self.tail_paths) or "none"
        return (
            f"blocks={self.block_path} ({self.num_layers}), final_norm={norm}, "
            f"unembed={self.unembed_path}, logit_scale={self.logit_scale}, "
            f"logit_softcap={self.logit_softcap}"
        )


def find_view(model: nn.Module, parts: Parts | None = None) -> HuggingFaceView:
    """Find the parts of a Hugging Face causal language model by structure.

    Args:
        model: a causal language model of transformers, or one of the same shape.
        parts: what to take by hand where structure does not tell.

    Raises:
        ValueError: a part is not found, or more than one candidate is; the message lists them.
    """
    parts = parts or Parts()
    block_path, blocks = _find_blocks(model, parts.blocks)
    unembed_path, unembed = _find_unembed(model, parts.unembed)
    config = getattr(model, "config", None)
    rows, width = _embedding(model).weight.shape
    if parts.final_norm is not None:
        tail = {parts.final_norm: _module_at(model, parts.final_norm, "final_norm")}
    else:
        tail = _find_tail(model, block_path, blocks, unembed, rows)
    return HuggingFaceView(
        model=model,
        blocks=blocks,
        block_path=block_path,
        tail=tuple(tail.values()),
        tail_paths=tuple(tail),
        unembed=unembed,
        unembed_path=unembed_path,
        embedding_rows=rows,
        width=width,
        max_positions=getattr(config, "max_position_embeddings", None),
        logit_scale=_config_scale(config) if parts.logit_scale is None else parts.logit_scale,
        logit_softcap=parts.logit_softcap or getattr(config, "final_logit_softcapping", None),
    )


def _find_blocks(model: nn.Module, path: str | None) -> tuple[str, tuple[nn.Module, ...]]:
    if path is not None:
        found = _module_at(model, path, "blocks")
        if not isinstance(found, nn.ModuleList) or len(found) == 0:
            raise ValueError(
                f"blocks: {path!r} is a {type(found).__name__}; "
                "it must be a ModuleList with at least one block"
            )
        return path, tuple(found)
    lists = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)
    }
    depth = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    fitting = [name for name, module in lists.items() if len(module) == depth and depth]
    # A list inside one of the fitting lists (experts, say) is a part of a block, not the stack.
    outermost = [
        name
        for name in fitting
        if not any(name.startswith(f"{other}.") for other in fitting if other != name)
    ]
    if len(outermost) != 1:
        seen = ", ".join(f"{name} ({len(module)})" for name, module in lists.items()) or "none"
        raise ValueError(
            f"blocks: {len(outermost)} module lists of {type(model).__name__} have as many members "
            f"as the model has layers ({depth}). Module lists found: {seen}. Name the right one by "
            'hand: parts=Parts(blocks="path.to.list"), on the command line --parts.blocks '
            "path.to.list"
        )
    return outermost[0], tuple(lists[outermost[0]])


def _find_unembed(model: nn.Module, path: str | None) -> tuple[str, nn.Module]:
    if path is not None:
        return path, _module_at(model, path, "unembed")
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if getter is not None else None
    if head is None:
        named = ", ".join(
            name for name, module in model.named_children() if isinstance(module, nn.Linear)
        )
        raise ValueError(
            f"unembed: {type(model).__name__} names no output embedding. Linear layers at its top: "
            f'{named or "none"}. Name it by hand: parts=Parts(unembed="path"), on the command line '
            "--parts.unembed path"
        )
    return next(name for name, module in model.named_modules() if module is head), head


def _find_tail(
    model: nn.Module,
    block_path: str,
    blocks: Sequence[nn.Module],
    unembed: nn.Module,
    rows: int,
) -> dict[str, nn.Module]:
    """The outermost modules that run between the last block's end and the unembedding."""
    ran: dict[str, nn.Module] = {}
    phase = {"tail": False}

    def enter(name: str):
        def hook(module: nn.Module, args: tuple) -> None:
            del args
            if module is unembed:
                phase["tail"] = False
            elif phase["tail"] and not any(name.startswith(f"{outer}.") for outer in ran):
                ran[name] = module

        return hook

    def last_block_ended(module: nn.Module, args: tuple, output: Any) -> None:
        del module, args, output
        phase["tail"] = True

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if not name or block_path == name or block_path.startswith(f"{name}."):
                continue  # an ancestor of the blocks is entered before they run
            if name.startswith(f"{block_path}."):
                continue
            hooks.callback(module.register_forward_pre_hook(enter(name)).remove)
        hooks.callback(blocks[-1].register_forward_hook(last_block_ended).remove)
        ids = probe_ids(rows, next(model.parameters()).device)
        with undisturbed(model), torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return ran


def _config_scale(config: Any) -> float:
    """The factor on the logits under the two names that configs give it."""
    divisor = getattr(config, "logits_scaling", None)
    if divisor is not None:
        return 1.0 / divisor
    scale = getattr(config, "logit_scale", None)
    return 1.0 if scale is None else float(scale)


def _embedding(model: nn.Module) -> Any:
    getter = getattr(model, "get_input_embeddings", None)
    if getter is None:
        raise ValueError(
            f"model: {type(model).__name__} has no get_input_embeddings; it must be a causal "
            "language model of transformers, or offer the same methods"
        )
    return getter()


def _module_at(model: nn.Module, path: str, argument: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        top = ", ".join(name for name, _ in model.named_children())
        raise ValueError(
            f"{argument}: {type(model).__name__} has no module {path!r}; "
            f"its top-level modules are {top}"
        ) from None
