"""Seconds, FLOPs and memory of sparse execution against the dense model, side by side."""

import copy
import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokendepth.adapters.load import Loaded, load
from tokendepth.depth.dense import Dense
from tokendepth.depth.execute import ExecutorName, check_executor
from tokendepth.engine.bench_result import Benchmark, BenchmarkRow, verdict
from tokendepth.engine.breakdown import Profile, parts_of, profiled
from tokendepth.engine.given import with_routers
from tokendepth.engine.phases import DENSE, PHASES, Decisions, Phase, Work, given_plan, work
from tokendepth.engine.timing import Spread, paired
from tokendepth.models.config import DecoderConfig
from tokendepth.models.decoder import Decoder
from tokendepth.text.documents import tokenize
from tokendepth.types import OnProgress

LENGTH = 256
"""Tokens of a sequence, unless the model's positions are fewer."""
GIVEN_ALPHA = 0.5
"""Where a policy skips nothing of itself and no `alpha` is given."""

Name = tuple[str, bool]
"""Executor, and whether routers run."""
REFERENCE: Name = ("reference", False)
CONTROL: Name = ("control", False)
"""The dense model once more: what the speed-up of nothing looks like."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """What to time and how."""

    phase: tuple[Phase, ...] = PHASES
    """prefill: a whole text; decode: one token after it; train: forward, backward and AdamW."""
    batch: tuple[int, ...] = (1, 8, 64)
    """Sequences at once."""
    length: int | None = None
    """Tokens of each sequence; 256 or the model's positions unless given."""
    executor: tuple[ExecutorName, ...] = ("gathered", "feed_forward", "auto")
    """What is timed against the dense model."""
    alpha: tuple[float, ...] = ()
    """Given decisions: each token runs each routed span with this chance. Several show where
    sparse execution begins to pay. Without it the policy decides."""
    routers: tuple[bool, ...] = ()
    """Of given decisions: whether the routers of token-selective attention run before them; without
    unless given, and both with random weights."""
    seconds: float = 5.0
    """Spent on the rounds of each comparison, at least 7 of them."""
    seed: int = 0
    """Of given decisions, random weights and tokens, and the order of arms."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        for name in ("phase", "batch", "executor"):
            if not getattr(self, name):
                raise ValueError(f"{name}: got none; give at least one")
        for name in self.executor:
            check_executor(name)
        for value in (*self.batch, 1 if self.length is None else self.length - 1):
            if value < 1:
                raise ValueError(
                    f"batch, length: got {self.batch} and {self.length}; a batch is at least 1, a "
                    "length at least 2"
                )
        for value in self.alpha:
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"alpha: got {value}; it must lie between 0 and 1")
        if self.seconds <= 0:
            raise ValueError(f"seconds: got {self.seconds}; it must be above 0")


def benchmark(
    model: str | Path | Loaded,
    *,
    text: str | None = None,
    on_progress: OnProgress = lambda done, total: None,
    **options: Any,
) -> Benchmark:
    """Time executors against the dense model.

    Args:
        model: what `tokendepth.load` takes, or what it returned; it is not changed.
        text: to run on, repeated as needed; random tokens by default, on which a policy decides
            nothing real.
        on_progress: told (comparisons done, comparisons in all).
        options: the fields of `BenchmarkOptions`.

    Raises:
        ValueError: an option out of its range, or a family without a decoder here.
    """
    given = BenchmarkOptions(**options)
    given.check()
    loaded = model if isinstance(model, Loaded) else load(model)
    ids = None
    if text is not None:
        ids = torch.tensor(tokenize("text", text, loaded.tokenizer).ids)
    return benchmark_on(loaded, given, ids=ids, on_progress=on_progress)


def benchmark_on(
    loaded: Loaded,
    options: BenchmarkOptions,
    *,
    ids: Int[Tensor, " token"] | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Benchmark:
    """The same for a model and text at hand.

    Args:
        loaded: a model with a decoder here, under its own schedule and policy; it is not changed.
        options: what to time and how.
        ids: text to run on, repeated as needed; random tokens by default. What a policy decides
            on random tokens says little.
        on_progress: told (comparisons done, comparisons in all).

    Raises:
        ValueError: an option out of its range, or a length beyond the model's positions.
    """
    options.check()
    decoder = loaded.decoder
    options = _with_length(options, decoder.config.max_positions)
    alphas: Sequence[float | None] = options.alpha or (
        (GIVEN_ALPHA,) if isinstance(decoder.policy, Dense) else (None,)
    )
    cases: list[tuple[Phase, int, float | None]] = [
        (phase, batch, alpha)
        for phase in options.phase
        for batch in options.batch
        for alpha in alphas
    ]
    trained = copy.deepcopy(decoder).train() if "train" in options.phase else decoder
    rows: list[BenchmarkRow] = []
    for number, (phase, batch, alpha) in enumerate(cases):
        on_progress(number, len(cases))
        model = trained if phase == "train" else decoder
        tokens = _tokens(decoder, batch, options, ids)
        rows += _compare(phase, model, tokens, alpha, options)
    on_progress(len(cases), len(cases))
    return Benchmark(
        model=loaded.title,
        policy="given decisions" if alphas[0] is not None else type(decoder.policy).__name__,
        rows=tuple(rows),
        measured={
            **loaded.facts(),
            **_machine(decoder.embedding.weight.device),
            **dataclasses.asdict(options),
            "text": "random tokens" if ids is None else f"{len(ids)} tokens",
        },
    )


def synthetic(width: int, layers: int, vocab_size: int, seed: int) -> Decoder:
    """A decoder of that size with random weights: heads of 64, feed-forward of 4 x width."""
    head_dim = min(64, width)
    if width % head_dim:
        raise ValueError(f"width: got {width}; take a multiple of {head_dim}")
    config = DecoderConfig(
        vocab_size=vocab_size,
        width=width,
        num_blocks=layers,
        num_heads=width // head_dim,
        num_key_value_heads=width // head_dim,
        head_dim=head_dim,
        inner_width=4 * width,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Decoder(config).eval()


def _with_length(options: BenchmarkOptions, limit: int | None) -> BenchmarkOptions:
    """The options with a length that the model has positions for."""
    if options.length is None:
        return dataclasses.replace(options, length=min(LENGTH, limit or LENGTH))
    if limit is not None and options.length > limit:
        raise ValueError(f"length: got {options.length}; the model has {limit} positions")
    return options


def _tokens(
    decoder: Decoder, batch: int, options: BenchmarkOptions, ids: Tensor | None
) -> Int[Tensor, "batch seq"]:
    assert options.length is not None
    shape, device = (batch, options.length), decoder.embedding.weight.device
    if ids is None:
        generator = torch.Generator().manual_seed(options.seed)
        return torch.randint(decoder.config.vocab_size, shape, generator=generator).to(device)
    times = -(-batch * options.length // len(ids))
    return ids.repeat(times)[: batch * options.length].view(shape).to(device)


def _compare(
    phase: Phase,
    decoder: Decoder,
    ids: Int[Tensor, "batch seq"],
    alpha: float | None,
    options: BenchmarkOptions,
) -> list[BenchmarkRow]:
    """One dense arm, the same once more as the measure of noise, and every executor."""
    device = ids.device
    decisions = _decisions(decoder, ids, alpha, options)
    works: dict[Name, Work] = {
        REFERENCE: work(phase, decoder, ids, DENSE),
        CONTROL: work(phase, decoder, ids, DENSE),
    }
    works |= {
        (name, routers): work(phase, decoder, ids, given.options(name))
        for routers, given in decisions.items()
        for name in options.executor
    }
    arms = {name: one.arm for name, one in works.items()}
    seconds = paired(arms, device, budget=options.seconds, seed=options.seed)
    profiles = {name: profiled(arm, decoder.config, device) for name, arm in arms.items()}
    noise = Spread.of(seconds[REFERENCE] / seconds[CONTROL])
    return [
        _row(phase, alpha, ids, name, works, seconds, profiles, noise) for name in list(works)[1:]
    ]


def _decisions(
    decoder: Decoder, ids: Tensor, alpha: float | None, options: BenchmarkOptions
) -> dict[bool, Decisions]:
    """Where decisions come from, by whether routers run for them."""
    if alpha is None:
        decides = decoder.policy.flops(tokens=1, spans=1) > 0
        return {decides: Decisions(routing=_routing(decoder))}
    plan = given_plan(decoder, len(ids), ids.shape[1], alpha, options.seed)
    ways = {
        False: lambda: Decisions(plan=plan),
        True: lambda: Decisions(policy=with_routers(decoder, plan, options.seed)),
    }
    return {routers: ways[routers]() for routers in options.routers or (False,)}


def _row(
    phase: Phase,
    alpha: float | None,
    ids: Int[Tensor, "batch seq"],
    name: "Name",
    works: Mapping["Name", Work],
    seconds: Mapping["Name", np.ndarray],
    profiles: Mapping["Name", Profile],
    noise: Spread,
) -> BenchmarkRow:
    """One arm against the reference."""
    speedup = Spread.of(seconds[REFERENCE] / seconds[name])
    took, dense = Spread.of(seconds[name]), Spread.of(seconds[REFERENCE])
    cost = works[name].cost(False)
    projected = works[REFERENCE].cost(False).total_flops / cost.total_flops
    parts = parts_of(
        took.median,
        profiles[name],
        dense.median,
        profiles[REFERENCE],
        lambda which, computed: works[REFERENCE if which == "dense" else name].cost(computed),
    )
    return BenchmarkRow(
        phase=phase,
        batch=len(ids),
        length=ids.shape[1],
        alpha=alpha,
        executor="dense" if name == CONTROL else name[0],
        routers=name[1],
        control=name == CONTROL,
        seconds=took,
        dense_seconds=dense.median,
        speedup=speedup,
        flops_speedup=projected,
        executed_share=cost.executed_share,
        peak_bytes=profiles[name].peak_bytes,
        dense_peak_bytes=profiles[REFERENCE].peak_bytes,
        gathered_bytes=cost.gathered_bytes,
        rounds=len(seconds[name]),
        verdict=verdict(name == CONTROL, speedup, projected, noise, parts),
        parts=parts,
    )


def _routing(decoder: Decoder) -> str:
    """Hard routing is what saves work; a policy without it has its default."""
    routings = decoder.policy.routings
    return "hard" if "hard" in routings else routings[0]


def _machine(device: torch.device) -> dict[str, object]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {"machine": name or platform.machine(), "threads": torch.get_num_threads()}
