"""Compare runs: score each on the same text, time all of them in the same rounds."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tokendepth.adapters.load import Loaded
from tokendepth.comparison.result import ComparedRun, Comparison
from tokendepth.comparison.scores import Score, scored
from tokendepth.depth.dense import Dense
from tokendepth.engine.phases import DENSE, work
from tokendepth.engine.timing import paired
from tokendepth.evaluation.evaluate import EvaluateOptions, reading_of
from tokendepth.text.documents import Document
from tokendepth.types import OnProgress


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A model that takes part."""

    name: str
    loaded: Loaded
    documents: Sequence[Document]
    folder: Path | None = None
    """Of a run: where its scores are kept."""
    group: str = ""
    """Runs that differ in their seed alone; the name itself by default."""
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How runs are scored and timed."""

    score: EvaluateOptions = dataclasses.field(default_factory=EvaluateOptions)
    """Its first routing is the one compared; the policy's hard one unless given."""
    timed_batch: int = 8
    """Sequences in the timed prefill."""
    timed_length: int = 128
    """Their tokens; fewer where a run has fewer positions."""
    seconds: float = 10.0
    """Spent on timing, at least 7 rounds."""
    controls: bool = False
    """Let what each learned policy must beat take part too: draws at its measured rates, its mean
    gates, the best fixed subset of layers, all on its own model's weights."""
    variants: tuple[str, ...] = ()
    """Other values of the policies' configs, such as threshold=0.8: each run whose policy has the
    field takes part once more with it."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        self.score.check()
        if self.timed_batch < 1 or self.timed_length < 1:
            raise ValueError(
                f"timed_batch, timed_length: got {self.timed_batch} and {self.timed_length}; both "
                "must be at least 1"
            )
        if self.seconds <= 0:
            raise ValueError(f"seconds: got {self.seconds}; it must be above 0")


def compare_entrants(
    entrants: Sequence[Entrant],
    options: CompareOptions,
    *,
    data: str,
    on_progress: OnProgress = lambda done, total: None,
) -> Comparison:
    """Score and time every entrant.

    The baseline is the group of the first with a `Dense` policy, else of the first.

    Raises:
        ValueError: fewer than two, two of one name, or texts that differ.
    """
    options.check()
    names = [entrant.name for entrant in entrants]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"runs: got {names}; name at least two, each once")
    first = [document.ids for document in entrants[0].documents]
    for entrant in entrants:
        if [document.ids for document in entrant.documents] != first:
            raise ValueError(
                f"runs: {entrant.name} reads other tokens than {names[0]}, so their losses cannot "
                "be compared; name the text with --file or --data, and runs with one tokenizer"
            )
    options = dataclasses.replace(options, score=_same_reading(entrants, options.score))
    scores = [
        scored(one.loaded, one.documents, _score_options(one, options), one.folder, on_progress)
        for one in entrants
    ]
    routings = {one.name: score.routing for one, score in zip(entrants, scores, strict=True)}
    seconds = _seconds(entrants, routings, options)
    rows = [
        _row(entrant, score, seconds[entrant.name])
        for entrant, score in zip(entrants, scores, strict=True)
    ]
    dense = [row for row in rows if row.policy == Dense.__name__]
    return Comparison(
        rows=tuple(rows),
        baseline=(dense or rows)[0].group,
        data=data,
        measured={
            **entrants[0].loaded.facts(),
            "weights_sha256": {one.name: one.loaded.weights_hash for one in entrants},
            **dataclasses.asdict(options),
        },
    )


def _same_reading(entrants: Sequence[Entrant], options: EvaluateOptions) -> EvaluateOptions:
    """One length and skip for all: the shortest window, and the most that one was not taught."""
    read = [reading_of(entrant.loaded, options) for entrant in entrants]
    return dataclasses.replace(
        options,
        length=min(one.length for one in read if one.length is not None),
        skip=max(one.skip or 0 for one in read),
    )


def _score_options(entrant: Entrant, options: CompareOptions) -> EvaluateOptions:
    """Under the first of the wanted routings that this policy has, else under its own."""
    has = entrant.loaded.decoder.policy.routings
    wanted = [one for one in options.score.routing if one in has]
    return dataclasses.replace(options.score, routing=tuple(wanted[:1]))


def _row(entrant: Entrant, score: Score, seconds: tuple[float, float, float]) -> ComparedRun:
    policy = entrant.loaded.decoder.policy
    return ComparedRun(
        run=entrant.name,
        group=entrant.group or entrant.name,
        seed=entrant.seed,
        policy=type(policy).__name__,
        control=policy.control,
        key_value_rule=entrant.loaded.decoder.config.key_value_rule,
        seconds_per_token=seconds[1],
        seconds_quartiles=(seconds[0], seconds[2]),
        **dataclasses.asdict(score),
    )


def _seconds(
    entrants: Sequence[Entrant], routings: Mapping[str, str], options: CompareOptions
) -> dict[str, tuple[float, float, float]]:
    """Quartiles of the seconds a token of a prefill of the same text, all entrants in each round.

    Args:
        entrants: what is compared.
        routings: of each, the one it was scored under.
        options: how long to measure.
    """
    limits = [entrant.loaded.decoder.config.max_positions for entrant in entrants]
    length = min([options.timed_length, *(limit for limit in limits if limit is not None)])
    arms, tokens = {}, options.timed_batch * length
    for entrant in entrants:
        decoder = entrant.loaded.decoder
        ids = torch.tensor([one for document in entrant.documents for one in document.ids])
        ids = ids.repeat(-(-tokens // len(ids)))[:tokens].view(options.timed_batch, -1)
        given = DENSE
        if not isinstance(decoder.policy, Dense):
            given = {"routing": routings[entrant.name], "executor": "gathered"}
        arms[entrant.name] = work(
            "prefill", decoder, ids.to(decoder.embedding.weight.device), given
        )
    device = entrants[0].loaded.decoder.embedding.weight.device
    timed = paired({name: one.arm for name, one in arms.items()}, device, budget=options.seconds)
    return {
        name: tuple((np.quantile(values, (0.25, 0.5, 0.75)) / tokens).tolist())
        for name, values in timed.items()
    }
