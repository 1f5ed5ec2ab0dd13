"""The way of few rows: what a decoding step takes where it can, with the same answer.

On a processor a step on a handful of rows spends half its time between operators. Where nothing
asks for a gradient, looks on, or has changed the modules, the kernels of `nn.few_rows` run all
blocks of a span in one call. All other calls, and all other kinds of block, go the ordinary way.
"""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain, groupby
from operator import attrgetter
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import record_function

from tokendepth.depth.base import Context, kept_rows, unwatched
from tokendepth.depth.few_weights import is_untouched, weights_of
from tokendepth.nn.block import Block
from tokendepth.nn.cache import Store
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
    for store in _stores(span, context):
        if store is None or store.parts is None:
            return False
    views = context.cache.views
    view = views.get(span.blocks)
    if view is None or not view.holds(blocks):
        view = views[span.blocks] = weights_of(blocks)
    if view.sizes is None or any(block.training for block in view.dropping):
        return False
    return (view.sizes[0], view.sizes[3]) == (hidden.shape[-1], context.few.turned)


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
    """The span's blocks on the state, in place: a call for all that have the same history."""
    view = context.cache.views[span.blocks]
    whole = len(stored.rows) == context.mask.numel()
    active = stored.places_of(running)
    stores, first = [store for store in _stores(span, context) if store is not None], 0
    for track, group in groupby(stores, key=attrgetter("track")):
        some, before = list(group), len(track)
        in_order = whole and context.full and before == context.cache.uniform
        claimed = [store.claim(slots, span.loop, in_order=in_order) for store in some]
        if not whole:
            for part in chain.from_iterable(claimed):
                part[:, before : len(some[0].track)] = 0.0
        positions = some[0].track.positions
        assert positions is not None
        places = [(keys.data_ptr(), values.data_ptr(), keys.shape[1]) for keys, values in claimed]
        here = slice(first, first := first + len(some))
        context.few.blocks(
            state, view.addresses[here], view.sizes, view.numbers[here], *stored.arrays,
            stored.seq + before, np.ascontiguousarray(positions.numpy()), active, np.array(places),
        )  # fmt: skip


def _stores(span: Span, context: Context) -> list[Store | None]:
    """Of each block of the span; None for those that have none yet."""
    found, purpose, loop = context.cache.stores, context.purpose, span.loop
    return [found.get((purpose, index, loop)) for index in span.blocks]


def product(rows: Float[Tensor, "row dim"], layer: nn.Linear) -> Float[Tensor, "row out"]:
    """What the layer makes of the rows; of few of them by the kernel for few."""
    few = len(rows) <= MOST_ROWS and layer.out_features % 2 == 0 and layer.bias is None
    if not (few and _plain_rows(rows) and is_untouched(layer) and not layer._forward_hooks):
        return layer(rows)
    kernels, levels = _kernels()[1], _levels(layer) if len(rows) <= FEWER_ROWS else None
    padding = 0 if levels is not None else kernels.padding(len(rows))
    padded = functional.pad(rows, (0, 0, 0, padding)) if padding else rows.contiguous()
    out = rows.new_empty((len(padded), layer.out_features))
    with _ONE_AT_A_TIME, _named("few_rows::head"):
        if levels is None:
            kernels.product(padded.numpy(), _array(layer), out.numpy())
        else:
            kernels.level_product(padded.numpy(), levels.levels, levels.scales, out.numpy())
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
    """The kernels for blocks and for products, on as many threads as torch uses.

    numba may share torch's threading runtime, and sets its number of threads when it starts.
    """
    from tokendepth.nn import few_products, few_rows  # noqa: PLC0415 - numba loads when needed

    threads = torch.get_num_threads()
    few_products.use_threads(threads)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return few_rows, few_products


def warm_up(weight: Tensor) -> None:
    """Compile the kernels, if a model with such weights may use them.

    Takes some 20 s on the first use of an installation; what is compiled is kept on disk.
    """
    if weight.dtype is not torch.float32 or weight.device.type != "cpu":
        return
    for kernels in _kernels():
        kernels.compile_all()


class _Call:
    """What is the same for all blocks of a call."""

    def __init__(self, context: Context) -> None:
        assert context.turns[0] is not None
        self.blocks = _kernels()[0].blocks
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


def _array(layer: nn.Linear) -> np.ndarray:
    return layer.weight.detach().numpy()


def _named(name: str):
    """A name in a profile, where one is being taken."""
    return record_function(name) if torch.autograd.profiler._is_profiler_enabled else _UNNAMED
