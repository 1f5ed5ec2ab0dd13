"""Do the states of a looped model converge, and when has each token settled?

J. Logan, depth-recurrent convergence. With p_k the prediction after k loops, a token has settled at

    kappa = the smallest k such that KL(p_{j-1} || p_j) < threshold for all j from k to `until`

so that a KL which is small once and rises again has not settled; where it holds nowhere, kappa is
`until`. Every loop is read with all tokens running: nothing halts here.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokendepth.adapters.load import Loaded, load
from tokendepth.adapters.view import check_ids
from tokendepth.depth.halting import VALUES
from tokendepth.measure.convergence_result import Convergence, LoopRow, TypeDepth
from tokendepth.measure.loop_readings import LoopReadings, each_loop, read_loops
from tokendepth.measure.settling import settle
from tokendepth.measure.statistics import mean_over_tokens
from tokendepth.models.decoder import Decoder
from tokendepth.models.schedule import with_loops
from tokendepth.text.documents import Document, Window, tokenize_all, windows
from tokendepth.text.pieces import Pieces
from tokendepth.text.token_types import TOKEN_TYPES, token_type
from tokendepth.types import OnProgress

WINDOW = 512
"""Tokens that are read at once, unless the model says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ConvergenceOptions:
    """What to measure and how."""

    loops: int | None = None
    """How far to look; four times the model's own loops unless given."""
    until: int | None = None
    """The last loop that counts for when a token has settled; twice its own unless given."""
    threshold: float = 1e-3
    """Of the KL between successive predictions, in nats."""
    limit: int | None = 8192
    """Tokens of each document."""
    length: int | None = None
    """Tokens that are read at once; a run's own window unless given."""
    batch: int = 8
    """Windows in one forward pass; changes nothing but speed and memory."""

    def check(self) -> None:
        """Raise a `ValueError` that names the first option out of its range."""
        for name, least in (("loops", 2), ("until", 2), ("limit", 2), ("length", 1), ("batch", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: got {value}; it must be at least {least}")
        if not 0.0 < self.threshold < float("inf"):
            raise ValueError(f"threshold: got {self.threshold}; it must be a number above 0")
        if self.loops is not None and self.until is not None and self.until > self.loops:
            raise ValueError(f"until: got {self.until}; at most the {self.loops} loops there are")


def convergence(
    texts: str | Sequence[str],
    model: str | Path | Loaded,
    *,
    names: Sequence[str] | None = None,
    on_progress: OnProgress = lambda done, total: None,
    **options: Any,
) -> Convergence:
    """Measure how the tokens of a text converge in a looped model.

    Args:
        texts: one text, or several documents.
        model: what `tokendepth.load` takes, or what it returned.
        names: what to call the documents.
        on_progress: told (tokens done, tokens in all) after each batch.
        options: the fields of `ConvergenceOptions`.

    Raises:
        ValueError: an empty text, an option out of its range, or a model without loops.
        NonFiniteError: logits are NaN or infinite.
    """
    given = ConvergenceOptions(**options)
    given.check()
    loaded = model if isinstance(model, Loaded) else load(model)
    decoder = loaded.decoder
    own = len(decoder.schedule.core)
    with_loops(decoder.schedule, 2)  # says what is wrong with a model without loops
    loops = given.loops or max(4 * own, given.until or 0)
    until = given.until or min(2 * own, loops)
    documents = tokenize_all(texts, loaded.tokenizer, names, limit=given.limit)
    for document in documents:
        check_ids(loaded.view, torch.tensor(document.ids))
    size = given.length or loaded.window or WINDOW
    cut = list(windows(documents, min(size, decoder.config.max_positions or size)))
    read: list[LoopReadings] = []
    starts: list[dict[int, Tensor]] = []
    total = sum(len(window.ids) for window in cut)
    for first in range(0, len(cut), given.batch):
        some = _Batch.of(cut[first : first + given.batch], first, decoder)
        read.append(read_loops(decoder, some.ids, some.mask, some.targets, loops, some.row_keys))
        if decoder.schedule.start in ("normal", "truncated"):
            starts.append(_between_starts(decoder, some, sorted({1, own, until, loops})))
        on_progress(sum(len(window.ids) for window in cut[: first + given.batch]), total)
    return _result(loaded, documents, cut, read, starts, dataclasses.replace(
        given, loops=loops, until=until, length=size
    ))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Windows as tensors, padded on the right; targets -1 where a window ends."""

    ids: Int[Tensor, "batch seq"]
    mask: Tensor
    targets: Int[Tensor, "batch seq"]
    row_keys: Int[Tensor, " batch"]

    @staticmethod
    def of(some: Sequence[Window], first: int, decoder: Decoder) -> "_Batch":
        """Row keys are numbers of windows, so that the batch changes nothing."""
        width = max(len(window.ids) for window in some)
        ids = torch.zeros(len(some), width, dtype=torch.long)
        targets = torch.full_like(ids, -1)
        for row, window in enumerate(some):
            ids[row, : len(window.ids)] = torch.tensor(window.ids)
            targets[row, : len(window.ids) - 1] = ids[row, 1 : len(window.ids)]
        lengths = torch.tensor([[len(window.ids)] for window in some])
        device = decoder.embedding.weight.device
        return _Batch(
            ids=ids.to(device),
            mask=(torch.arange(width) < lengths).to(device),
            targets=targets.to(device),
            row_keys=first + torch.arange(len(some), device=device),
        )


def _between_starts(decoder: Decoder, some: _Batch, at: Sequence[int]) -> dict[int, Tensor]:
    """KL between predictions from two initial states, after some numbers of loops."""
    kept: list[dict[int, Tensor]] = []
    for seed in (0, 1):
        mine: dict[int, Tensor] = {}

        def tell(loop: int, states: Tensor, logits: Tensor | None, mine: Any = mine) -> None:
            del states
            if loop in at and logits is not None:
                mine[loop] = logits.double()

        each_loop(decoder, some.ids, some.mask, max(at), tell, row_keys=some.row_keys, seed=seed)
        kept.append(mine)
    return {loop: VALUES["kl"]([kept[0][loop], kept[1][loop]]).cpu() for loop in at}


def settled_after(
    kl: Float[Tensor, "loop token"], threshold: float, until: int
) -> Int[Tensor, " token"]:
    """The loop, 2 to `until`, from which on KL stays below the threshold; else `until`.

    Args:
        kl: between the predictions of a loop and the one before, from loop 1 on.
        threshold: in nats.
        until: the last loop that is looked at.
    """
    depth, _ = settle(kl[:until] < threshold)
    return depth + 1


def _result(
    loaded: Loaded,
    documents: Sequence[Document],
    cut: Sequence[Window],
    read: Sequence[LoopReadings],
    starts: Sequence[dict[int, Tensor]],
    options: ConvergenceOptions,
) -> Convergence:
    own = len(loaded.decoder.schedule.core)
    until = options.until or own
    columns = {
        name: torch.cat([getattr(one, name) for one in read], dim=1).numpy()
        for name in ("kl", "change", "acceleration", "turned", "loss")
    }
    kl = torch.from_numpy(columns["kl"])
    depth = settled_after(kl, options.threshold, until).numpy()
    moving = (kl[own:until] >= options.threshold).any(0).numpy()
    window = np.repeat(np.arange(len(cut)), [len(one.ids) for one in cut])
    kinds = _types(loaded, documents, cut)
    change = columns["change"].mean(1)
    return Convergence(
        model=loaded.title,
        data=", ".join(document.name for document in documents),
        num_tokens=len(depth),
        own_loops=own,
        threshold=options.threshold,
        until=until,
        loops=tuple(_row(loop, columns) for loop in range(1, len(change) + 1)),
        mean_depth=mean_over_tokens(depth.astype(float), window),
        median_depth=float(np.median(depth)),
        share_moving=float(moving.mean()),
        contraction_rate=float((change[until - 1] / change[1]) ** (1 / max(1, until - 2))),
        start_kl={
            loop: float(torch.cat([one[loop] for one in starts]).mean())
            for loop in (starts[0] if starts else ())
        },
        by_type=tuple(
            TypeDepth(
                type=kind,
                num_tokens=int((kinds == kind).sum()),
                mean_depth=mean_over_tokens(
                    depth[kinds == kind].astype(float), window[kinds == kind]
                ),
                median_depth=float(np.median(depth[kinds == kind])),
                share_moving=float(moving[kinds == kind].mean()),
            )
            for kind in TOKEN_TYPES
            if (kinds == kind).any()
        ),
        measured={**loaded.facts(), **dataclasses.asdict(options), "windows": len(cut)},
    )


def _row(loop: int, columns: dict[str, np.ndarray]) -> LoopRow:
    at = {name: values[loop - 1] for name, values in columns.items()}
    return LoopRow(
        loop=loop,
        kl=_told(float(at["kl"].mean())),
        median_kl=_told(float(np.median(at["kl"]))),
        change=float(at["change"].mean()),
        acceleration=_told(float(at["acceleration"].mean())),
        turned=_told(float(at["turned"].mean())),
        loss=float(np.nanmean(at["loss"])),
    )


def _told(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _types(loaded: Loaded, documents: Sequence[Document], cut: Sequence[Window]) -> np.ndarray:
    """Of the token that is read, in the order of the readings."""
    pieces = Pieces(loaded.tokenizer)
    by_document = []
    for document in documents:
        texts = pieces.texts(document.ids + document.following)[: len(document.ids)]
        pairs = zip(texts, document.is_special, strict=True)
        by_document.append([token_type(text, special=mark) for text, mark in pairs])
    kinds: list[str] = []
    for one in cut:
        prefix = by_document[one.document][: one.num_repeated]
        body = by_document[one.document][one.first :][: len(one.ids) - one.num_repeated]
        kinds += prefix + body
    return np.array(kinds, dtype=object)
