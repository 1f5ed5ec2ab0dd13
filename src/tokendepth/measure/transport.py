"""Does a model move its cloud of token states along the cheapest way? The whole protocol.

Texts to windows, windows to clouds through a camera (`transport_seen`), and every transition to
its quantities (`transition`). With a folder to resume from, the clouds as the camera sees them and
each finished transition are kept there (`transport_kept`).
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tokendepth.adapters.load import Loaded, load
from tokendepth.adapters.view import check_ids
from tokendepth.measure.transition import Transition, measure_transition
from tokendepth.measure.transport_kept import Kept
from tokendepth.measure.transport_options import TransportOptions
from tokendepth.measure.transport_result import Transport
from tokendepth.measure.transport_seen import Pair, Seen, see
from tokendepth.text.documents import Window, tokenize_all, windows

DEFAULT_N = 4000

OnProgress = Callable[[str, int, int], None]
"""Told (stage, done, in all), where the stage is `tokens` or `transitions`."""


class TransportInterrupted(KeyboardInterrupt):
    """Ctrl-C. `result` holds the transitions finished until then, or None."""

    def __init__(self, result: Transport | None) -> None:
        super().__init__()
        self.result = result


def transport(
    texts: str | Sequence[str],
    model: str | Path | Loaded = "smollm2",
    *,
    names: Sequence[str] | None = None,
    on_progress: OnProgress = lambda stage, done, total: None,
    resume: Path | None = None,
    **options: Any,
) -> Transport:
    """Measure how a model moves its cloud of token states from layer to layer.

    Args:
        texts: one text, or several documents.
        model: what `tokendepth.load` takes, or what it returned.
        names: what to call the documents.
        on_progress: told (stage, done, in all).
        resume: a folder, made if missing, in which clouds and finished transitions are kept; the
            same measurement, called again with the same folder, goes on from there.
        options: the fields of `TransportOptions`.

    Raises:
        ValueError: an empty text, an option out of its range, or too few points for n.
        NonFiniteError: a state is NaN or infinite.
        TransportInterrupted: Ctrl-C; finished transitions are in its `result`, and in `resume`.
    """
    given = TransportOptions(**options)
    given.check()
    loaded = model if isinstance(model, Loaded) else load(model)
    view = loaded.view
    pairs = given.pairs(view.num_layers)
    documents = tokenize_all(texts, loaded.tokenizer, names, limit=given.limit)
    for document in documents:
        check_ids(view, torch.tensor(document.ids))
    room = min(given.window, view.max_positions or given.window)
    cut = list(windows(documents, room))
    mark = _fingerprint(loaded, cut, given)
    kept = Kept(resume, mark)
    done, seen = kept.transitions(), None
    try:
        seen = kept.seen(pairs)
        if seen is None:
            seen = see(view, cut, pairs, given, lambda *told: on_progress("tokens", *told))
            if given.camera != "full":
                kept.keep_seen(seen)
        n = given.n or min(DEFAULT_N, seen.facts["num_points"] // 3)
        on_progress("transitions", 0, len(pairs))
        for number, pair in enumerate(pairs):
            if pair not in done:
                x, y = (end.double().numpy() for end in seen.ends[pair])
                normed = pair[1] > view.num_layers
                done[pair] = measure_transition(
                    x, y, layers=(pair[0], pair[1] - normed), final_norm=normed, n=n,
                    seeds=range(given.seeds), num_directions=given.sliced,
                    explained=seen.explained[pair],
                )  # fmt: skip
                kept.add(done[pair])
            on_progress("transitions", number + 1, len(pairs))
    except KeyboardInterrupt:
        some = _result(loaded, pairs, done, seen, given, names) if done and seen else None
        raise TransportInterrupted(some) from None
    return _result(loaded, pairs, done, seen, given, names)


def _fingerprint(loaded: Loaded, cut: list[Window], options: TransportOptions) -> str:
    """Equal for measurements whose clouds and transitions are interchangeable."""
    what = {**dataclasses.asdict(options), "batch": None}
    text = repr((loaded.weights_hash, str(loaded.view.dtype), [each.ids for each in cut], what))
    return hashlib.sha256(text.encode()).hexdigest()


def _result(
    loaded: Loaded,
    pairs: Sequence[Pair],
    done: Mapping[Pair, Transition],
    seen: Seen,
    options: TransportOptions,
    names: Sequence[str] | None,
) -> Transport:
    return Transport(
        model=loaded.title,
        num_layers=loaded.view.num_layers,
        transitions=tuple(done[pair] for pair in pairs if pair in done),
        **seen.facts,
        measured={
            **loaded.facts(),
            "states": "after each block, before the final norm unless a row says otherwise",
            "texts": list(names or ()),
            **dataclasses.asdict(options),
        },
        complete=all(pair in done for pair in pairs),
    )
