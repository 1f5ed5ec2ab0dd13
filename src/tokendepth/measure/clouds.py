"""Clouds of token states: the same points seen at every layer.

*Mean flow*: one point per token type, its state averaged over all occurrences. *Raw*: one point
per occurrence. The points are chosen before the model runs, at random among all that the text
offers, so memory is bounded by their number and not by the corpus. The first position of every
window is left out: it cannot look at anything but itself, and its state is an outlier everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokendepth.adapters.view import View
from tokendepth.measure.capture import capture
from tokendepth.text.documents import Window

Kind = Literal["mean_flow", "raw"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class Clouds:
    """States of the same points at layers 0 to L."""

    kind: Kind
    states: tuple[Float[Tensor, "point dim"], ...]
    """One cloud a layer, float32."""
    occurrences: Int[Tensor, " point"]
    """Positions that each point is the mean of."""
    num_positions: int
    """Positions of the text, without the first of each window."""
    num_types: int
    """Token types among them."""


def capture_clouds(
    view: View,
    cut: Sequence[Window],
    *,
    kind: Kind = "mean_flow",
    max_points: int,
    batch: int = 8,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Clouds:
    """Run the model over all windows once, and keep one state a point and layer.

    Sums are in float64.

    Args:
        view: the model.
        cut: windows of the texts.
        kind: what a point is.
        max_points: how many points to follow; all of them where the text has fewer.
        batch: windows in one forward pass.
        seed: of the choice of points.
        on_progress: told (tokens done, tokens in all) after each batch.

    Raises:
        ValueError: a text without a second position.
        NonFiniteError: a state is NaN or infinite.
    """
    places = [_owners(window) for window in cut]
    ids = np.concatenate(places)
    if len(ids) == 0:
        raise ValueError("texts: no window has a second position; give longer texts")
    types = np.unique(ids)
    owner = _points(ids, types, kind, max_points, seed)
    num_points = int(owner.max()) + 1
    owners = np.split(owner, np.cumsum([len(place) for place in places])[:-1])
    sums = [
        torch.zeros(num_points, view.width, dtype=torch.float64) for _ in range(view.num_layers + 1)
    ]
    done, total = 0, sum(len(window.ids) for window in cut)
    for number, begin in enumerate(range(0, len(cut), batch)):
        some = slice(begin, begin + batch)
        _add(view, cut[some], owners[some], sums, number)
        done += sum(len(window.ids) for window in cut[some])
        on_progress(done, total)
    occurrences = torch.from_numpy(np.bincount(owner[owner >= 0], minlength=num_points))
    states = []
    while sums:  # the widest thing here: let go of each sum when its mean is there
        states.append((sums.pop(0) / occurrences[:, None]).float())
    return Clouds(
        kind=kind,
        states=tuple(states),
        occurrences=occurrences,
        num_positions=len(ids),
        num_types=len(types),
    )


def _owners(window: Window) -> Int[np.ndarray, " position"]:
    """Token ids of the positions that count."""
    return np.array(window.ids[max(1, window.num_repeated) :], dtype=np.int64)


def _points(
    ids: np.ndarray, types: np.ndarray, kind: Kind, max_points: int, seed: int
) -> Int[np.ndarray, " position"]:
    """The point of each position, -1 for those that are not followed."""
    random = np.random.default_rng(seed)
    if kind == "raw":
        chosen = random.permutation(len(ids))[:max_points]
        owner = np.full(len(ids), -1)
        owner[chosen] = np.arange(len(chosen))
        return owner
    chosen = np.full(len(types), -1)
    kept = np.sort(random.permutation(len(types))[:max_points])
    chosen[kept] = np.arange(len(kept))
    return chosen[np.searchsorted(types, ids)]


def _add(
    view: View,
    windows: Sequence[Window],
    owners: Sequence[np.ndarray],
    sums: list[Tensor],
    number: int,
) -> None:
    """Add the states of one batch to the sums of their points."""
    lengths = [len(window.ids) for window in windows]
    ids = torch.zeros(len(windows), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(ids)
    point = torch.full(ids.shape, -1)
    for row, (window, owner) in enumerate(zip(windows, owners, strict=True)):
        ids[row, : lengths[row]] = torch.tensor(window.ids)
        mask[row, : lengths[row]] = 1
        point[row, lengths[row] - len(owner) : lengths[row]] = torch.from_numpy(owner)
    device = view.device
    states = capture(view, ids.to(device), mask.to(device), batch=number)
    where = (point >= 0).nonzero(as_tuple=True)
    for index, total in enumerate(sums):
        total.index_add_(0, point[where], states[index][where].cpu().double())
