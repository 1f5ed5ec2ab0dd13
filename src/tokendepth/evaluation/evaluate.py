"""Evaluate a model on documents: the probe first, then a full fixed pass under each routing."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokendepth.adapters.load import Loaded, load
from tokendepth.depth.base import Policy, check_routing
from tokendepth.depth.execute import ExecutorName, check_executor
from tokendepth.errors import CausalityError
from tokendepth.evaluation.causality import NEAR, PREFIXES, Causality, probe
from tokendepth.evaluation.groups import TextFacts, by_position
from tokendepth.evaluation.loss import TokenScores, score
from tokendepth.evaluation.passages import Passage, passages
from tokendepth.evaluation.result import Evaluation, RoutingRow
from tokendepth.measure.statistics import mean_over_tokens
from tokendepth.models.decoder import Decoder
from tokendepth.text.documents import Document, tokenize_all
from tokendepth.types import OnProgress, Routing

LENGTH = 512
"""Inputs of a passage, unless the model's positions are fewer."""
PROBED = 40
"""Tokens of the text that the causality probe runs on, filled up with random ones."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What to evaluate and how."""

    routing: tuple[Routing, ...] = ()
    """Routings of the policy; all that it has unless given."""
    batch: int = 8
    """Passages in one forward pass; changes nothing but speed and memory."""
    length: int | None = None
    """Tokens that the model reads at once; a run's own window, else 512 or the model's positions,
    unless given."""
    limit: int | None = None
    """Score at most so many tokens of each document."""
    skip: int | None = None
    """Targets at the beginning of each passage that are not scored, such as the question of a task;
    those that a run was not taught unless given."""
    executor: ExecutorName = "dense"
    """How decisions are run; the answer is the same."""
    prefixes: tuple[int, ...] = PREFIXES
    """Prefix lengths at which the causality probe looks."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        check_executor(self.executor)
        for name in ("batch", "length", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}; it must be at least 1")
        if self.skip is not None and self.skip < 0:
            raise ValueError(f"skip: got {self.skip}; it must be at least 0")


def evaluate(
    texts: str | Sequence[str],
    model: str | Path | Loaded = "smollm2",
    *,
    names: Sequence[str] | None = None,
    on_progress: OnProgress = lambda done, total: None,
    **options: Any,
) -> Evaluation:
    """Probe a model for causality, then score every token of the texts under each routing.

    Args:
        texts: one text, or several documents.
        model: what `tokendepth.load` takes, or what it returned.
        names: what to call the documents.
        on_progress: told (tokens done, tokens in all) after each batch.
        options: the fields of `EvaluateOptions`.

    Raises:
        ValueError: an empty text, an unknown option value, or a family without a decoder here.
        CausalityError: the policy says it is causal and is not; nothing is scored.
        NonFiniteError: a logit is NaN or infinite.
    """
    loaded = model if isinstance(model, Loaded) else load(model)
    documents = tokenize_all(texts, loaded.tokenizer, names)
    data = ", ".join(document.name for document in documents)
    return evaluate_documents(
        loaded, documents, EvaluateOptions(**options), data=data, on_progress=on_progress
    )


def evaluate_documents(
    loaded: Loaded,
    documents: Sequence[Document],
    options: EvaluateOptions,
    *,
    data: str,
    on_progress: OnProgress = lambda done, total: None,
) -> Evaluation:
    """Score every token of the documents but the first of each.

    Args:
        loaded: a model with a decoder here, under its own schedule and policy.
        documents: as token ids of the model's tokenizer.
        options: what to evaluate and how.
        data: what results call the documents.
        on_progress: told (tokens done, tokens in all) after each batch.

    Raises:
        ValueError: nothing to predict, a routing that the policy lacks, ids beyond the vocabulary.
        CausalityError: the policy says it is causal and is not; nothing is scored.
        NonFiniteError: a logit is NaN or infinite.
    """
    decoder = loaded.decoder
    kept, given, options = prepared(loaded, documents, options)
    names = _routings(decoder, options.routing)
    probes = [probed(decoder, given, options, routing=name) for name in names]
    text = TextFacts(kept, loaded)
    rows, total = [], len(names) * sum(len(passage.ids) - 1 for passage in given)
    for number, (name, causality) in enumerate(zip(names, probes, strict=True)):
        scores = score(
            decoder,
            given,
            routing=name,
            batch=options.batch,
            executor=options.executor,
            on_progress=lambda done, each, number=number: on_progress(number * each + done, total),
        )
        rows.append(row_of(causality, scores, given, text))
    return Evaluation(
        model=loaded.title,
        policy=type(decoder.policy).__name__,
        control=decoder.policy.control,
        key_value_rule=decoder.config.key_value_rule,
        data=data,
        num_tokens=sum(sum(passage.scored) for passage in given),
        num_bytes=text.num_bytes(given),
        rows=tuple(rows),
        measured={
            **loaded.facts(),
            **dataclasses.asdict(options),
            "documents": len(kept),
            "passages": len(given),
            "data_sha256": fingerprint(kept),
        },
    )


def prepared(
    loaded: Loaded, documents: Sequence[Document], options: EvaluateOptions
) -> tuple[list[Document], list[Passage], EvaluateOptions]:
    """The documents up to the limit, their passages, and the options as they are meant.

    Raises:
        ValueError: an option out of its range, nothing to predict, ids beyond the vocabulary.
    """
    options.check()
    kept = [_cut(document, options.limit) for document in documents]
    _check_vocabulary(loaded.decoder, kept)
    options = reading_of(loaded, options)
    given = list(passages(kept, options.length or LENGTH, skip=options.skip or 0))
    if not any(any(passage.scored) for passage in given):
        raise ValueError("texts: no token can be predicted; give a text of at least 2 tokens")
    return kept, given, options


def reading_of(loaded: Loaded, options: EvaluateOptions) -> EvaluateOptions:
    """The options with the length and skip that are meant where none are given.

    Raises:
        ValueError: a length beyond the model's positions.
    """
    limit = loaded.decoder.config.max_positions
    if limit is not None and options.length is not None and options.length > limit:
        raise ValueError(f"length: got {options.length}; the model has {limit} positions")
    return dataclasses.replace(
        options,
        length=options.length or loaded.window or min(limit or LENGTH, LENGTH),
        skip=loaded.skip if options.skip is None else options.skip,
    )


def _cut(document: Document, limit: int | None) -> Document:
    if limit is None or len(document.ids) <= limit + 1:
        return document
    kept = limit + 1
    return dataclasses.replace(
        document,
        ids=document.ids[:kept],
        is_special=document.is_special[:kept],
        num_dropped=document.num_dropped + len(document.ids) - kept,
        following=document.ids[kept : kept + 4],
    )


def _check_vocabulary(decoder: Decoder, documents: Sequence[Document]) -> None:
    for document in documents:
        largest = max(document.ids, default=0)
        if largest >= decoder.config.vocab_size:
            raise ValueError(
                f"texts: {document.name} has token {largest}; the model's vocabulary ends at "
                f"{decoder.config.vocab_size - 1}: take the tokenizer that the model was made with"
            )


def _routings(decoder: Decoder, wanted: Sequence[str]) -> list[Routing]:
    """Those wanted or all, hard routing first: it is what is compared between systems."""
    policy = decoder.policy
    asked: list[Routing] = [check_routing(policy, name) for name in wanted]
    names = asked or list(policy.routings)
    return sorted(dict.fromkeys(names), key=lambda name: name != "hard")


def probed(
    decoder: Decoder,
    given: Sequence[Passage],
    options: EvaluateOptions,
    *,
    routing: Routing | None = None,
    policy: Policy | None = None,
) -> Causality:
    """What the probe sees on the beginning of the text.

    Raises:
        CausalityError: the policy says it is causal and is not.
    """
    policy = policy or decoder.policy
    size = max(PROBED, *(length + 1 for length in options.prefixes), 2)
    size = min(size, decoder.config.max_positions or size)
    rows = [list(passage.ids[:size]) for passage in given[:2]]
    fill = torch.Generator().manual_seed(0)
    for row in rows:
        more = torch.randint(decoder.config.vocab_size, (size - len(row),), generator=fill)
        row += more.tolist()
    ids = torch.tensor(rows, device=decoder.embedding.weight.device)
    found = probe(
        decoder, ids, policy=policy, routing=routing, executor=options.executor,
        prefixes=options.prefixes,
    )  # fmt: skip
    if found.declared and found.moved is not None:
        raise CausalityError(
            f"{type(policy).__name__} says it is causal under {found.routing} routing, but "
            f"{found.moved}. Its scores would be worthless: mend it, or let `causal` return False."
        )
    return found


def row_of(
    causality: Causality, scores: TokenScores, given: Sequence[Passage], text: TextFacts
) -> RoutingRow:
    """The scores of one routing, with intervals and groups."""
    told = np.isfinite(scores.margin).any()
    return RoutingRow(
        routing=causality.routing,
        causality=causality,
        loss=mean_over_tokens(scores.nats, scores.passage),
        bits_per_byte=float(scores.nats.sum()) / (math.log(2) * text.num_bytes(given)),
        accuracy=float(scores.correct.mean()),
        executed_share=scores.cost.executed_share,
        gates=scores.gates.gates(),
        flops_per_token=scores.cost.total_flops / scores.cost.tokens,
        dense_flops_per_token=scores.dense_cost.total_flops / scores.cost.tokens,
        num_near=int((scores.margin < NEAR).sum()) if told else None,
        by_position=by_position(scores),
        by_type=text.by_type(scores, given),
    )


def fingerprint(documents: Sequence[Document]) -> str:
    """Of the tokens."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(np.array(document.ids, dtype=np.int64).tobytes() + b"|")
    return digest.hexdigest()
