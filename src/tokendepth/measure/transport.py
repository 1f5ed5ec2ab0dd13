"""Does a model move its cloud of token states along the cheapest way? The whole protocol.

Texts to windows, windows to clouds (`clouds`), clouds through a camera (`camera`), and every
transition to its quantities (`transition`). With a folder to resume from, the clouds as the camera
sees them and each finished transition are kept there.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tokendepth.adapters.load import Loaded, load
from tokendepth.adapters.view import check_ids
from tokendepth.measure.camera import cameras
from tokendepth.measure.clouds import Clouds, capture_clouds
from tokendepth.measure.transition import Transition, measure_transition
from tokendepth.measure.transport_options import TransportOptions
from tokendepth.measure.transport_result import Transport
from tokendepth.text.documents import Window, tokenize_all, windows

DEFAULT_N = 4000

OnProgress = Callable[[str, int, int], None]
"""Told (stage, done, in all), where the stage is `tokens` or `transitions`."""


class TransportInterrupted(KeyboardInterrupt):
    """Ctrl-C. `result` holds the transitions finished until then, or None."""

    def __init__(self, result: Transport | None) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Clouds as the camera sees them: one array for each end of each pair."""

    ends: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]
    explained: dict[tuple[int, int], float]
    facts: dict[str, int]


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
    kept = _Kept(resume, mark)
    done: dict[tuple[int, int], Transition] = kept.transitions()
    seen: _Seen | None = None
    try:
        seen = kept.seen(pairs) or _see(loaded, cut, pairs, given, on_progress, kept)
        n = given.n or min(DEFAULT_N, seen.facts["num_points"] // 3)
        for number, pair in enumerate(pairs):
            if pair not in done:
                x, y = seen.ends[pair]
                done[pair] = measure_transition(
                    x, y, layers=pair, n=n, seeds=range(given.seeds),
                    num_directions=given.sliced, explained=seen.explained[pair],
                )  # fmt: skip
                kept.add(done[pair])
            on_progress("transitions", number + 1, len(pairs))
    except KeyboardInterrupt:
        some = _result(loaded, pairs, done, seen, given, names) if done and seen else None
        raise TransportInterrupted(some) from None
    return _result(loaded, pairs, done, seen, given, names)


def _see(
    loaded: Loaded,
    cut: list[Window],
    pairs: list[tuple[int, int]],
    options: TransportOptions,
    on_progress: OnProgress,
    kept: "_Kept",
) -> _Seen:
    view = loaded.view
    fit = int(options.memory_gb * 1e9 / ((view.num_layers + 1) * view.width * 8))
    clouds = capture_clouds(
        view, cut, kind=options.points, max_points=max(1, fit), batch=options.batch,
        on_progress=lambda done, total: on_progress("tokens", done, total),
    )  # fmt: skip
    if len(clouds.occurrences) < 6:
        raise ValueError(
            f"texts: got {len(clouds.occurrences)} points; three samples need at least 6. Give "
            "longer texts"
        )
    looks = cameras(options.camera, options.directions, clouds, pairs)
    ends = {
        pair: (look.see(clouds.states[pair[0]]), look.see(clouds.states[pair[1]]))
        for pair, look in zip(pairs, looks, strict=True)
    }
    explained = {pair: look.explained for pair, look in zip(pairs, looks, strict=True)}
    facts = _facts(clouds)
    if options.camera != "full":
        kept.keep_seen(ends, explained, facts)
    return _Seen(
        ends={pair: (x.numpy(), y.numpy()) for pair, (x, y) in ends.items()},
        explained=explained,
        facts=facts,
    )


def _facts(clouds: Clouds) -> dict[str, int]:
    return {
        "num_points": len(clouds.occurrences),
        "num_types": clouds.num_types,
        "num_positions": clouds.num_positions,
    }


def _fingerprint(loaded: Loaded, cut: list[Window], options: TransportOptions) -> str:
    """Equal for measurements whose clouds and transitions are interchangeable."""
    what = {**dataclasses.asdict(options), "batch": None}
    text = repr((loaded.weights_hash, str(loaded.view.dtype), [each.ids for each in cut], what))
    return hashlib.sha256(text.encode()).hexdigest()


def _result(
    loaded: Loaded,
    pairs: list[tuple[int, int]],
    done: dict[tuple[int, int], Transition],
    seen: _Seen,
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
            "states": "after each block, before the final norm",
            "texts": list(names or ()),
            **dataclasses.asdict(options),
        },
        complete=all(pair in done for pair in pairs),
    )


class _Kept:
    """What a folder holds of an earlier, interrupted measurement; nothing without a folder."""

    def __init__(self, folder: Path | None, mark: str) -> None:
        self._folder, self._mark = folder, mark
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def transitions(self) -> dict[tuple[int, int], Transition]:
        """Those of the same measurement; a line that a kill has torn is left out."""
        found = {}
        if self._folder is not None and (self._folder / "transitions.jsonl").is_file():
            for line in (self._folder / "transitions.jsonl").read_text().splitlines():
                try:
                    stored = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if stored.pop("fingerprint") == self._mark:
                    each = Transition.from_dict(stored)
                    found[each.source, each.target] = each
        return found

    def add(self, each: Transition) -> None:
        """One more finished transition."""
        if self._folder is not None:
            line = json.dumps({"fingerprint": self._mark, **each.to_dict()})
            with (self._folder / "transitions.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")

    def keep_seen(
        self,
        ends: dict[tuple[int, int], tuple[Tensor, Tensor]],
        explained: dict[tuple[int, int], float],
        facts: dict[str, int],
    ) -> None:
        """The clouds, so that the model need not run again."""
        if self._folder is None:
            return
        tensors = {
            f"{pair[0]}-{pair[1]}.{at}": end.contiguous()
            for pair, both in ends.items()
            for at, end in enumerate(both)
        }
        told = {f"{source}-{target}": value for (source, target), value in explained.items()}
        save_file(
            tensors,
            self._folder / "clouds.safetensors",
            metadata={
                "fingerprint": self._mark,
                "explained": json.dumps(told),
                "facts": json.dumps(facts),
            },
        )

    def seen(self, pairs: list[tuple[int, int]]) -> _Seen | None:
        """Clouds of the same measurement, if they are there and whole."""
        path = None if self._folder is None else self._folder / "clouds.safetensors"
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, framework="np") as stored:
                about = stored.metadata() or {}
                if about.get("fingerprint") != self._mark:
                    return None
                told = json.loads(about["explained"])
                ends = {
                    pair: (
                        stored.get_tensor(f"{pair[0]}-{pair[1]}.0"),
                        stored.get_tensor(f"{pair[0]}-{pair[1]}.1"),
                    )
                    for pair in pairs
                }
        except SafetensorError:
            return None
        explained = {pair: told[f"{pair[0]}-{pair[1]}"] for pair in pairs}
        return _Seen(ends=ends, explained=explained, facts=json.loads(about["facts"]))
