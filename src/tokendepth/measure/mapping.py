"""Measure the settling depth of every token: texts to windows, windows to readings, to a result."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokendepth.adapters.load import Loaded, load
from tokendepth.adapters.view import View, check_ids
from tokendepth.engine.decode import GenerateOptions, stream
from tokendepth.measure.capture import capture
from tokendepth.measure.depth_map import DepthMap, DocumentFacts
from tokendepth.measure.lens import Lens, Readings
from tokendepth.measure.partial import fingerprint, load_partial, save_partial
from tokendepth.measure.settling import (
    DEFAULT_THRESHOLDS,
    RULES,
    Rule,
    check_rule,
    rule_holds,
    settle,
)
from tokendepth.text.documents import Document, Window, tokenize_all, windows
from tokendepth.text.pieces import Pieces
from tokendepth.text.token_types import token_type
from tokendepth.types import OnProgress

STATE_BYTES = 256 * 2**20
"""States held at a time, unless a single window needs more."""


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """What to measure and how."""

    rule: Rule = "kl_last"
    """When a token counts as settled."""
    threshold: float | None = None
    """Threshold of the rule; its own default unless given."""
    chat: bool = False
    """Wrap each text in the model's chat template, as a message of the user."""
    include_first: bool = False
    """Count the first position of each window in the statistics. Its state is an outlier in most
    models, since it cannot look at anything but itself."""
    top_k: int = 5
    """How many of the most likely tokens to keep at each state."""
    batch: int = 8
    """Windows in one forward pass, at most."""
    limit: int | None = None
    """Map at most so many tokens of each document."""
    generate: int | None = None
    """Map each text together with so many tokens of the model's own greedy continuation."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        check_rule(self.rule, self.threshold)
        if self.top_k < 0:
            raise ValueError(f"top_k: got {self.top_k}; it must be 0 or more")
        if self.batch < 1:
            raise ValueError(f"batch: got {self.batch}; it must be at least 1")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit: got {self.limit}; it must be at least 1")
        if self.generate is not None and self.generate < 1:
            raise ValueError(f"generate: got {self.generate}; it must be at least 1")


class MapInterrupted(KeyboardInterrupt):
    """Ctrl-C during a map. `result` holds the windows done until then, or None."""

    def __init__(self, result: DepthMap | None) -> None:
        super().__init__()
        self.result = result


def map(
    texts: str | Sequence[str],
    model: str | Path | Loaded = "smollm2",
    *,
    names: Sequence[str] | None = None,
    on_progress: OnProgress = lambda done, total: None,
    resume: Path | None = None,
    **options: Any,
) -> DepthMap:
    """Measure the settling depth of every token.

    Args:
        texts: one text, or several documents.
        model: what `tokendepth.load` takes, or what it returned.
        names: what to call the documents.
        on_progress: told (tokens done, tokens in all) after each batch.
        resume: where the windows done are kept after Ctrl-C or a failure; the same map, called
            again with the same path, goes on from there. Remove it when the result is safe.
        options: the fields of `MapOptions`.

    Raises:
        ValueError: an empty text, an unknown option value, or a model whose parts are not found.
        NonFiniteError: a weight, state or logit is NaN or infinite.
        MapInterrupted: Ctrl-C; what is done is in its `result`, and in `resume`.
    """
    given = MapOptions(**options)
    given.check()
    loaded = model if isinstance(model, Loaded) else load(model)
    documents = tokenize_all(texts, loaded.tokenizer, names, chat=given.chat, limit=given.limit)
    if given.generate is not None:
        documents = [
            one
            for start in range(0, len(documents), given.batch)
            for one in _continued(loaded, documents[start : start + given.batch], given.generate)
        ]
    return _map_documents(loaded, documents, given, on_progress, resume)


def _continued(loaded: Loaded, documents: list[Document], new_tokens: int) -> list[Document]:
    """Each document with the model's greedy continuation, up to a stop token."""
    made: list[list[int]] = [[] for _ in documents]
    steps = stream(
        loaded.decoder,
        [document.ids for document in documents],
        GenerateOptions(max_new_tokens=new_tokens),
        ended=lambda row, ids: ids[-1] in loaded.stop_ids,
    )
    for step in steps:
        for token in step:
            made[token.row].append(token.id)
    control = set(loaded.tokenizer.all_special_ids)
    return [
        dataclasses.replace(
            document,
            ids=(*document.ids, *new),
            is_special=(*document.is_special, *(token in control for token in new)),
            num_dropped=0,
            following=(),
        )
        for document, new in zip(documents, made, strict=True)
    ]


def _map_documents(
    loaded: Loaded,
    documents: list[Document],
    options: MapOptions,
    on_progress: OnProgress,
    resume: Path | None,
) -> DepthMap:
    view = loaded.view
    for document in documents:  # before minutes of work, not after
        check_ids(view, torch.tensor(document.ids))
    lens = Lens(view)
    cut = list(windows(documents, view.max_positions))
    total = sum(len(window.ids) for window in cut)
    mark = fingerprint(loaded.weights_hash, f"{view.dtype} {view.describe()}", cut, options.top_k)
    done = {} if resume is None else load_partial(resume, mark)
    left = [number for number in range(len(cut)) if number not in done]
    try:
        for batch_number, batch in enumerate(_batches(cut, left, view, options.batch)):
            read = _read_batch(lens, [cut[number] for number in batch], options, batch_number)
            done |= zip(batch, read, strict=True)
            on_progress(sum(len(cut[number].ids) for number in done), total)
    except BaseException as error:
        if resume is not None and done:
            save_partial(resume, mark, done)
        if isinstance(error, KeyboardInterrupt):
            partial = _result(loaded, documents, cut, done, options) if done else None
            raise MapInterrupted(partial) from None
        raise
    return _result(loaded, documents, cut, done, options)


def _batches(cut: list[Window], numbers: list[int], view: View, size: int) -> Iterator[list[int]]:
    """Window numbers, at most `size` together and no more padded states than `STATE_BYTES`."""
    budget = STATE_BYTES // ((view.num_layers + 1) * view.width * view.dtype.itemsize)
    batch: list[int] = []
    for number in numbers:
        longest = max(len(cut[other].ids) for other in [*batch, number])
        if batch and (len(batch) == size or longest * (len(batch) + 1) > budget):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _read_batch(
    lens: Lens, batch: list[Window], options: MapOptions, number: int
) -> list[Readings]:
    lengths = [len(window.ids) for window in batch]
    ids = torch.zeros(len(batch), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, window in enumerate(batch):
        ids[row, : lengths[row]] = torch.tensor(window.ids)
        mask[row, : lengths[row]] = 1
    ids, mask = ids.to(lens.view.device), mask.to(lens.view.device)
    states = capture(lens.view, ids, mask, batch=number)
    readings = lens.read(states, mask.bool(), top_k=options.top_k, batch=number)
    pieces = zip(*(value.split(lengths, dim=1) for value in vars(readings).values()), strict=True)
    return [Readings(**dict(zip(vars(readings), piece, strict=True))) for piece in pieces]


def _result(
    loaded: Loaded,
    documents: list[Document],
    cut: list[Window],
    done: Mapping[int, Readings],
    options: MapOptions,
) -> DepthMap:
    threshold = check_rule(options.rule, options.threshold)
    thresholds: dict[Rule, float | None] = {**DEFAULT_THRESHOLDS, options.rule: threshold}
    pieces = Pieces(loaded.tokenizer)
    texts = [pieces.texts(document.ids + document.following) for document in documents]
    mapped = [cut[number] for number in sorted(done)]
    parts = [
        _columns(cut[number], done[number], documents[cut[number].document], thresholds)
        for number in sorted(done)
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    positions = list(zip(columns["document"], columns["index"], strict=True))
    read = tuple(texts[document][index] for document, index in positions)
    special = np.array([documents[document].is_special[index] for document, index in positions])
    first = columns.pop("first")
    return DepthMap(
        model=loaded.title,
        num_layers=loaded.view.num_layers,
        rule=options.rule,
        threshold=threshold,
        documents=tuple(_facts(number, documents, mapped) for number in range(len(documents))),
        texts=read,
        types=tuple(
            token_type(text, special=bool(mark)) for text, mark in zip(read, special, strict=True)
        ),
        counted=~special & (options.include_first | ~first),
        depths={rule: columns.pop(f"depth {rule}") for rule in RULES},
        unsettled_under={rule: columns.pop(f"unsettled {rule}") for rule in RULES},
        top_texts={int(one): pieces.alone(int(one)) for one in np.unique(columns["top_ids"])},
        measured=_measured(loaded, documents, options),
        complete=len(done) == len(cut),
        **columns,
    )


def _columns(
    window: Window,
    readings: Readings,
    document: Document,
    thresholds: Mapping[Rule, float | None],
) -> dict[str, np.ndarray]:
    """The arrays of one window, without the tokens it repeats from the start of the document."""
    length, repeated = len(window.ids), window.num_repeated
    index = np.arange(window.first, window.first + length - repeated)
    columns = {
        "document": np.full(len(index), window.document),
        "index": index,
        "window": np.full(len(index), window.index),
        "ids": np.array(document.ids)[index],
        "first": np.arange(repeated, length) == 0,
        "entropy": readings.entropy.T[repeated:].numpy(),
        "kl": readings.kl_last.T[repeated:].numpy(),
        "top_ids": readings.top_ids.transpose(0, 1)[repeated:].numpy(),
        "top_probabilities": readings.top_probabilities.transpose(0, 1)[repeated:].numpy(),
    }
    for rule, threshold in thresholds.items():
        depth, unsettled = settle(rule_holds(readings, rule, threshold))
        columns[f"depth {rule}"] = depth[repeated:].numpy()
        columns[f"unsettled {rule}"] = unsettled[repeated:].numpy()
    return columns


def _facts(number: int, documents: list[Document], mapped: list[Window]) -> DocumentFacts:
    mine = [window for window in mapped if window.document == number]
    return DocumentFacts(
        name=documents[number].name,
        num_tokens=sum(len(window.ids) - window.num_repeated for window in mine),
        num_dropped=documents[number].num_dropped,
        window_starts=tuple(window.first for window in mine),
    )


def _measured(loaded: Loaded, documents: list[Document], options: MapOptions) -> dict[str, Any]:
    view = loaded.view
    before = [
        loaded.tokenizer.convert_ids_to_tokens(one)
        for one in documents[0].ids[: documents[0].num_prefix]
    ]
    return {
        **loaded.facts(),
        "read_out": view.describe(),
        "max_positions": view.max_positions,
        "special_tokens": (
            "the chat template's"
            if options.chat
            else f"the tokenizer's default: {' '.join(before) or 'none'} before each window"
        ),
        "first_ids": list(documents[0].ids[:5]),
        **dataclasses.asdict(options),
    }
