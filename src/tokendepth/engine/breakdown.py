"""Where the time of a run goes, and what of it the projected FLOPs did not foresee.

Operators are sorted into parts by torch's profiler; whatever no operator accounts for (Python,
launches, small elementwise work) is `other`, so the parts add up to the whole. Profiling slows a
run down, so parts are shares of the profiled time, applied to the time measured without it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from tokendepth.engine.timing import Arm, timed
from tokendepth.models.config import DecoderConfig
from tokendepth.models.cost import Ledger, Line

Part = Literal["products", "attention", "head", "gather", "other"]
PARTS: tuple[Part, ...] = Part.__args__
_PRODUCTS = ("aten::linear", "aten::addmm", "aten::mm", "aten::matmul", "aten::bmm")
_GATHERS = (
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::nonzero", "aten::cat", "aten::where", "aten::gather", "aten::scatter",
    "aten::masked_fill", "aten::scatter_reduce", "aten::cumsum", "aten::masked_scatter",
    "aten::index_select", "aten::index_copy", "aten::index_copy_",
)  # fmt: skip
_FEW_ROWS: Mapping[str, Part] = {"few_rows::blocks": "products", "few_rows::head": "head"}
"""Kernels that run a whole block; its attention counts among the products there."""
_LINES: Mapping[Part, tuple[Line, ...]] = {
    "products": ("query", "key_value", "output", "feed_forward", "adapter", "check", "router"),
    "attention": ("attention",),
    "head": ("head",),
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One run under the profiler."""

    shares: Mapping[Part, float]
    """Of the time of the run; they sum to 1. The head counts among the products where its size
    is that of another layer, since operators are told apart by their shapes."""
    peak_bytes: int | None
    """Memory of tensors at its highest, above what was there before; None where nothing tells."""


@dataclass(frozen=True, kw_only=True)
class PartRow:
    """One part of the time: `seconds` is `projected_seconds` and what was lost beside it."""

    part: Part
    dense_seconds: float
    projected_seconds: float
    """The dense seconds of this part, times its share of the FLOPs."""
    seconds: float
    lost_to_padding: float
    """Attention alone: query slots and masked pairs that are computed all the same."""
    lost_otherwise: float
    """A gather that the dense model does not need; a kernel that is slower on few rows."""


def profiled(arm: Arm, config: DecoderConfig, device: torch.device) -> Profile:
    """Shares of the parts, and peak memory, of one run after a warm one."""
    vocab_size = config.vocab_size if _head_is_apart(config) else None
    arm.once()
    cuda = device.type == "cuda"
    before = 0
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, profile_memory=not cuda, record_shapes=True) as prof:
        seconds = timed(arm, device)
    spent: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for event, part in _sorted(prof.events() or (), vocab_size):
        total = event.device_time_total if cuda else event.cpu_time_total
        spent[part] += float(total) / 1e6
    seconds = max(seconds, sum(spent.values()))
    shares: dict[Part, float] = {part: spent[part] / seconds for part in PARTS}
    shares["other"] = 1.0 - sum(shares.values())
    if cuda:
        peak = torch.cuda.max_memory_allocated(device) - before
    else:
        peak = _peak(prof) if device.type == "cpu" else None
    return Profile(shares=shares, peak_bytes=peak)


def parts_of(
    seconds: float,
    mine: Profile,
    dense_seconds: float,
    dense: Profile,
    cost: Callable[[str, bool], Ledger],
) -> tuple[PartRow, ...]:
    """What each part took, what it should have taken, and where the rest went.

    Args:
        seconds: of the run, measured without the profiler.
        mine: its profile.
        dense_seconds: of the dense run.
        dense: its profile.
        cost: (`dense` or `mine`, whether padding and masked pairs count) -> ledger.
    """
    rows, head_apart = [], dense.shares["head"] > 0
    for part in PARTS:
        full, took = dense_seconds * dense.shares[part], seconds * mine.shares[part]
        seen = _ratio(cost, part, computed=False, head_apart=head_apart)
        computed = _ratio(cost, part, computed=True, head_apart=head_apart)
        padding = full * (computed - seen) if part == "attention" else 0.0
        projected = full * seen
        rows.append(
            PartRow(
                part=part,
                dense_seconds=full,
                projected_seconds=projected,
                seconds=took,
                lost_to_padding=padding,
                lost_otherwise=took - projected - padding,
            )
        )
    return tuple(rows)


def _ratio(
    cost: Callable[[str, bool], Ledger], part: Part, *, computed: bool, head_apart: bool
) -> float:
    """FLOPs of a part over the dense model's; 1 for parts that have none."""
    lines = _LINES.get(part, ())
    if part == "products" and not head_apart:
        lines = (*lines, "head")
    full = sum(cost("dense", computed).flops[line] for line in lines)
    return sum(cost("mine", computed).flops[line] for line in lines) / full if full else 1.0


def _head_is_apart(config: DecoderConfig) -> bool:
    heads = {config.num_heads, config.num_key_value_heads}
    sizes = {config.width, config.inner_width, *(one * config.head_dim for one in heads)}
    return config.vocab_size not in sizes


def _sorted(events: Any, vocab_size: int | None) -> Iterator[tuple[FunctionEvent, Part]]:
    """The outermost operators that belong to a part."""
    left = [event for event in events if event.cpu_parent is None]
    while left:
        event = left.pop()
        part = _part(event, vocab_size)
        if part is None:
            left += event.cpu_children
        else:
            yield event, part


def _part(event: FunctionEvent, vocab_size: int | None) -> Part | None:
    if "scaled_dot_product" in event.name:
        return "attention"
    if event.name in _GATHERS:
        return "gather"
    if event.name in _FEW_ROWS:
        return "products" if vocab_size is None else _FEW_ROWS[event.name]
    if event.name in _PRODUCTS:
        shapes: list[list[int]] = event.input_shapes  # pyright: ignore[reportAssignmentType]
        return "head" if any(vocab_size in shape for shape in shapes) else "products"
    return None


def _peak(prof: Any) -> int:
    """The highest sum of what was allocated and not yet freed."""
    events = [one for one in prof.profiler.kineto_results.events() if one.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak
