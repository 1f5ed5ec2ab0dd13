"""Scores of a run, kept in its folder so that a comparison evaluates nothing twice."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokendepth import __version__
from tokendepth.adapters.load import Loaded, hash_weights
from tokendepth.evaluation.evaluate import EvaluateOptions, evaluate_documents
from tokendepth.files import write_aside
from tokendepth.text.documents import Document
from tokendepth.types import OnProgress

FILE = "comparison.json"


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a comparison needs of an evaluation, under the routing that is compared."""

    routing: str
    causal: bool
    loss: float
    bits_per_byte: float
    executed_share: float
    flops_per_token: float


def scored(
    loaded: Loaded,
    documents: Sequence[Document],
    options: EvaluateOptions,
    folder: Path | None,
    on_progress: OnProgress,
) -> Score:
    """The score that the folder holds for these weights, this text and these options, or a new one.

    Args:
        loaded: the model.
        documents: to score on.
        options: the first routing it names, or the policy's hard one, is the one compared.
        folder: where scores are kept; None for a model that has none.
        on_progress: told (tokens done, tokens in all).
    """
    key = _key(loaded, documents, options)
    kept = {} if folder is None else _read(folder / FILE)
    if key in kept:
        return kept[key]
    row = evaluate_documents(
        loaded, documents, options, data="comparison", on_progress=on_progress
    ).main
    score = Score(
        routing=row.routing,
        causal=row.causality.causal,
        loss=row.loss.value,
        bits_per_byte=row.bits_per_byte,
        executed_share=row.executed_share,
        flops_per_token=row.flops_per_token,
    )
    if folder is not None:
        _write(folder / FILE, {**kept, key: score})
    return score


def _key(loaded: Loaded, documents: Sequence[Document], options: EvaluateOptions) -> str:
    policy = loaded.decoder.policy
    settings = {
        name: value
        for name, value in vars(policy).items()
        if isinstance(value, (bool, int, float, str))
    }
    what = (
        __version__,
        hash_weights(loaded.decoder),
        f"{type(policy).__module__}.{type(policy).__qualname__} {sorted(settings.items())}",
        repr(policy.config),
        repr(loaded.decoder.schedule),
        repr(loaded.decoder.config),
        [document.ids for document in documents],
        # Neither batch nor executor changes a score.
        dataclasses.replace(options, batch=1, executor="dense"),
    )
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _read(path: Path) -> dict[str, Score]:
    """What is kept; nothing where the file is missing or was written by another version."""
    if not path.is_file():
        return {}
    try:
        given = json.loads(path.read_text())
        return {key: Score(**value) for key, value in given.items()}
    except (json.JSONDecodeError, TypeError, AttributeError):
        return {}


def _write(path: Path, scores: dict[str, Score]) -> None:
    given = {key: dataclasses.asdict(score) for key, score in scores.items()}
    write_aside(path, [json.dumps(given, indent=2) + "\n"])
