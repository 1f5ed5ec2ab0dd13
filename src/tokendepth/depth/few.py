"""The way of few rows: what a decoding step takes where it can, with the same answer.

On a processor a step on a handful of rows spends half its time between operators. Where nothing
asks for a gradient, looks on, or has changed the modules, the kernels of `nn.few_rows` run a block
in one call. All other calls, and all other kinds of block, go the ordinary way.
"""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import record_function

from tokendepth.depth.base import Context, kept_rows, unwatched
from tokendepth.nn.attention import Attention
from tokendepth.nn.block import Block
from tokendepth.nn.levels import Levels, levels_of
from tokendepth.nn.track import EMPTY
from tokendepth.types import Decision, Span

MOST_ROWS = 16
"""Beyond them a general matrix product is faster."""
FEWER_ROWS = 4
"""Up to them reading is what takes time, and fewer bytes are worth more arithmetic."""
_KNOWN: WeakKeyDictionary[nn.Linear, tuple[tuple[int, int], Tensor, Levels | None]]
_KNOWN = WeakKeyDictionary()
"""Levels of heads, with place, version and a sample of the weights they were found in."""
_ONE_AT_A_TIME = threading.Lock()
"""Not every threading layer of numba may be entered twice."""
_UNNAMED = nullcontext()


def are_few(hidden: Float[Tensor, "batch seq dim"]) -> bool:
    """Whether the time between operators counts."""
    return hidden.shape[0] * hidden.shape[1] <= MOST_ROWS


def fits(
    blocks: Sequence[Block],
    hidden: Float[Tensor, "batch seq dim"],
    decision: Decision,
    span: Span,
    context: Context,
) -> bool:
    """Whether this span of this call can go the way of few rows."""
    if context.few is None:
        context.few = _Call(context) if _plain_call(hidden, context) else False
    if context.few is False or decision.weight is not None:
        return False
    stores, views = context.cache.stores, context.cache.views
    for index, block in zip(span.blocks, blocks, strict=True):
        found = stores.get((context.purpose, index, span.loop))
        if found is None or found.parts is None:
            return False
        view = views.get(index)
        if view is None or view.block is not block or not view.holds():
            views[index] = view = _Weights.of(block)
        if not view.plain or view.head_dim != context.few.turned:
            return False
        if block.training and block.feed_forward.config.dropout:
            return False
    return True


def run(
    span: Span,
    blocks: Sequence[Block],
    hidden: Float[Tensor, "batch seq dim"],
    entry: Float[Tensor, "batch seq dim"],
    decision: Decision,
    context: Context,
) -> Float[Tensor, "batch seq dim"]:
    """As the executors: (span, its blocks, hidden, entry, decision, context) -> hidden."""
    call = context.few
    running = stored = call.every
    slots = context.slots
    if decision.keep is not None:
        kept = kept_rows(decision, context.mask)
        running = call.chosen(kept, context)
        if context.cache.rule != "all" and running is not stored:
            stored, slots = running, context.positions.where(kept, EMPTY)
    state = entry.flatten(0, 1).contiguous().numpy()
    if len(running.rows):
        state = state.copy()
    if len(stored.rows):
        with _ONE_AT_A_TIME, _named("few_rows::blocks"):
            _run(span, state, slots, stored, running, context)
    if len(running.rows) == 0:
        return hidden
    made = torch.from_numpy(state).view(hidden.shape)
    if len(running.rows) == context.mask.numel():
        return made
    return made.where(running.marked[..., None], hidden)


def _run(
    span: Span, state: np.ndarray, slots: Tensor, stored: "_Chosen", running: "_Chosen",
    context: Context,
) -> None:  # fmt: skip
    """The span's blocks on the state, in place. Blocks with the same history share one track."""
    block, cache = context.few.kernels.block, context.cache
    whole = len(stored.rows) == context.mask.numel()
    active, before, first, places, positions = stored.places_of(running), None, 0, None, None
    for index in span.blocks:
        store = cache.stores[context.purpose, index, span.loop]
        again = store.track is before
        if not again:
            before, first = store.track, len(store.track)
            places = stored.seq + first
        in_order = whole and context.full and first == cache.uniform
        parts = store.claim(slots, span.loop, in_order=in_order)
        if not again:
            assert store.track.positions is not None
            positions = np.ascontiguousarray(store.track.positions.numpy())
        if not whole:
            for part in parts:
                part[:, first : len(store.track)] = 0.0
        keys, values = parts[0].numpy(), parts[1].numpy()
        block(
            state, *cache.views[index].arrays, *stored.arrays, places, positions, active, keys,
            values,
        )  # fmt: skip


def product(rows: Float[Tensor, "row dim"], layer: nn.Linear) -> Float[Tensor, "row out"]:
    """What the layer makes of the rows; of few of them by the kernel for few."""
    few = len(rows) <= MOST_ROWS and layer.out_features % 2 == 0 and layer.bias is None
    if not (few and _plain_rows(rows) and _is_untouched(layer) and not layer._forward_hooks):
        return layer(rows)
    few_rows, levels = _kernels(), _levels(layer) if len(rows) <= FEWER_ROWS else None
    padding = 0 if levels is not None else few_rows.padding(len(rows))
    padded = functional.pad(rows, (0, 0, 0, padding)) if padding else rows.contiguous()
    out = rows.new_empty((len(padded), layer.out_features))
    with _ONE_AT_A_TIME, _named("few_rows::head"):
        if levels is None:
            few_rows.product(padded.numpy(), _array(layer), out.numpy())
        else:
            few_rows.level_product(padded.numpy(), levels.levels, levels.scales, out.numpy())
    return out[: len(rows)]


def _levels(layer: nn.Linear) -> Levels | None:
    """The layer's weights as levels; looked for once for as long as they are the same.

    A sample is compared beside the version, which what is written through `.data` does not raise.
    """
    weight = layer.weight.detach()
    if weight.is_inference():  # counts no changes
        return None
    state, sample = (
        (weight.data_ptr(), weight._version),
        weight.view(-1)[:: weight.numel() // 64 + 1],
    )
    known = _KNOWN.get(layer)
    if known is None or known[0] != state or not torch.equal(known[1], sample):
        known = _KNOWN[layer] = state, sample.clone(), levels_of(weight)
    return known[2]


def _kernels():
    """The kernels, on as many threads as torch uses.

    numba may share torch's threading runtime, and sets its number of threads when it starts.
    """
    from tokendepth.nn import few_rows  # noqa: PLC0415 - numba loads when it is needed

    threads = torch.get_num_threads()
    few_rows.use_threads(threads)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return few_rows


def warm_up(weight: Tensor) -> None:
    """Compile the kernels, if a model with such weights may use them.

    Takes some 20 s on the first use of an installation; what is compiled is kept on disk.
    """
    if weight.dtype is not torch.float32 or weight.device.type != "cpu":
        return
    _kernels().compile_all()


class _Call:
    """What is the same for all blocks of a call."""

    def __init__(self, context: Context) -> None:
        assert context.turns[0] is not None
        self.kernels = _kernels()
        self.turned = context.turns[0][0].shape[-1]
        self.every = _Chosen(context.mask, context)
        self._known = {self.every.key: self.every}

    def chosen(self, marked: Tensor, context: Context) -> "_Chosen":
        """Some of the rows; worked out once for all spans that run them."""
        key = marked.numpy().tobytes()
        if key not in self._known:
            self._known[key] = _Chosen(marked, context)
        return self._known[key]


class _Chosen:
    """Some of a call's rows, as the kernels want them."""

    def __init__(self, marked: Tensor, context: Context) -> None:
        turn = context.turns[0]
        assert turn is not None
        self.marked = marked
        self.key = marked.numpy().tobytes()
        self.rows = marked.flatten().numpy().nonzero()[0]
        batch, self.seq = np.divmod(self.rows, marked.shape[1])
        cosine, sine = (part.flatten(0, 1).numpy()[self.rows] for part in turn)
        positions = context.positions.flatten().numpy()[self.rows]
        self.arrays = self.rows, batch, positions, cosine, sine
        self._places = {self.key: np.arange(len(self.rows))}

    def places_of(self, others: "_Chosen") -> np.ndarray:
        """Where the rows of some of these lie among them."""
        if others.key not in self._places:
            self._places[others.key] = np.searchsorted(self.rows, others.rows)
        return self._places[others.key]


@dataclass(frozen=True)
class _Weights:
    """A block's weights as arrays, for as long as its modules and parameters are the same."""

    block: Block
    plain: bool
    watched: tuple[tuple[dict, str, object], ...]
    """Where modules and parameters hang, under which name, and what was there."""
    hooks: tuple[dict, ...]
    pointers: tuple[tuple[Tensor, int], ...]
    arrays: tuple = ()
    """Of `nn.few_rows.block`: from the gains of the first norm to the last weight."""
    head_dim: int = 0

    def holds(self) -> bool:
        """Nothing was replaced, moved or hooked since."""
        for found, name, known in self.watched:  # generators would cost twice the time
            if found.get(name) is not known:
                return False
        if any(self.hooks):
            return False
        return all(part.data_ptr() == known for part, known in self.pointers)

    @staticmethod
    def of(block: Block) -> "_Weights":
        """As they are now."""
        attention, layer = block.attention, block.feed_forward
        parts = (
            (block, "attention_norm"), (block, "feed_forward_norm"),
            (attention, "query"), (attention, "key"), (attention, "value"), (attention, "output"),
            (layer, "gate"), (layer, "up"), (layer, "down"),
        )  # fmt: skip
        modules = [owner._modules.get(name) for owner, name in parts]
        found = [one for one in (block, attention, layer, *modules) if one is not None]
        hooks = tuple(
            hook for one in found for hook in (one._forward_hooks, one._forward_pre_hooks)
        )
        watched = [(owner._modules, name, owner._modules.get(name)) for owner, name in parts]
        watched += [
            (block._modules, "attention", attention),
            (block._modules, "feed_forward", layer),
        ]
        if not _is_plain(block) or any(hooks) or not all(_is_untouched(one) for one in modules):
            return _Weights(block, plain=False, watched=tuple(watched), hooks=hooks, pointers=())
        weights = [one._parameters["weight"] for one in modules if one is not None]
        watched += [
            (one._parameters, "weight", weight)
            for one, weight in zip(modules, weights, strict=True)
            if one is not None
        ]
        attention_gain, feed_forward_gain, *products = (
            weight.detach().numpy() for weight in weights if weight is not None
        )
        return _Weights(
            block,
            plain=True,
            watched=tuple(watched),
            hooks=hooks,
            pointers=tuple((one, one.data_ptr()) for one in weights if one is not None),
            arrays=(
                attention_gain, _epsilon(block.attention_norm), *products[:4], _scale(attention),
                feed_forward_gain, _epsilon(block.feed_forward_norm), *products[4:],
            ),
            head_dim=attention.config.head_dim,
        )  # fmt: skip


def _plain_call(hidden: Tensor, context: Context) -> bool:
    """Few rows of a call that goes on from others, full turns, and nobody who collects states."""
    turn = context.turns[0]
    return (
        are_few(hidden)
        and context.cache.uniform != 0
        and context.cache.rule != "carried"
        and context.watch is unwatched
        and turn is not None
        and _plain_rows(hidden)
    )


def _plain_rows(rows: Tensor) -> bool:
    """Float32 on a processor, with nobody who differentiates, traces or counts."""
    return (
        rows.dtype is torch.float32
        and rows.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch.compiler.is_compiling()
    )


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


def _is_untouched(part: nn.Module | None) -> bool:
    """A linear layer without bias or a root-mean-square norm, float32, as torch has it."""
    if part is None or type(part) not in (nn.Linear, nn.RMSNorm):
        return False
    if part._parameters.get("bias") is not None:
        return False
    weight = part._parameters["weight"]
    return weight is not None and weight.dtype is torch.float32 and weight.is_contiguous()


def _epsilon(norm: nn.Module | None) -> np.float32:
    assert isinstance(norm, nn.RMSNorm)
    return np.float32(norm.eps or torch.finfo(torch.float32).eps)


def _scale(attention: Attention) -> np.float32:
    return np.float32(attention.config.scale or attention.config.head_dim**-0.5)


def _array(layer: nn.Linear) -> np.ndarray:
    return layer.weight.detach().numpy()


def _named(name: str):
    """A name in a profile, where one is being taken."""
    return record_function(name) if torch.autograd.profiler._is_profiler_enabled else _UNNAMED
