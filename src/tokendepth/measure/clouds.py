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

from tokendepth.adapters.recording import undisturbed
from tokendepth.adapters.view import View
from tokendepth.measure.capture import capture
from tokendepth.text.documents import Window

Kind = Literal["mean_flow", "raw"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FEW = 32  # terms of a sum that float32 holds


@dataclass(frozen=True, kw_only=True)
class Clouds:
    """States of the same points at layers 0 to L."""

    kind: Kind
    states: tuple[Float[Tensor, "point dim"], ...]
    """One cloud a layer, float32."""
    normed: Float[Tensor, "point dim"] | None
    """The last layer after the final norm, where that was asked for."""
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
    batch: int = 1,
    seed: int = 0,
    final_norm: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Clouds:
    """Run the model over all windows once, and keep one state a point and layer.

    Args:
        view: the model.
        cut: windows of the texts.
        kind: what a point is.
        max_points: how many points to follow; all of them where the text has fewer.
        batch: windows in one forward pass.
        seed: of the choice of points.
        final_norm: also follow the points through the final norm.
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
    occurrences = np.bincount(owner[owner >= 0], minlength=num_points)
    layers = view.num_layers + 1 + final_norm
    sums = [_Sums(occurrences, view.width) for _ in range(layers)]
    done, total = 0, sum(len(window.ids) for window in cut)
    for number, begin in enumerate(range(0, len(cut), batch)):
        some = slice(begin, begin + batch)
        _add(view, cut[some], owners[some], sums, number)
        done += sum(len(window.ids) for window in cut[some])
        on_progress(done, total)
    means = [each.means() for each in sums]
    return Clouds(
        kind=kind,
        states=tuple(means[: view.num_layers + 1]),
        normed=means[-1] if final_norm else None,
        occurrences=torch.from_numpy(occurrences),
        num_positions=len(ids),
        num_types=len(types),
    )


class _Sums:
    """Sums of states by point, at one layer.

    Those of many terms are kept in float64. Sums of at most `FEW` are off by less than 2e-6 in
    float32, most points are such, and they are what takes the memory.
    """

    def __init__(self, occurrences: Int[np.ndarray, " point"], width: int) -> None:
        self._occurrences = torch.from_numpy(occurrences)
        self._place = torch.full((len(occurrences),), -1)
        self._many = (self._occurrences > FEW).nonzero()[:, 0]
        self._place[self._many] = torch.arange(len(self._many))
        self._rough = torch.zeros(len(occurrences), width)
        self._fine = torch.zeros(len(self._many), width, dtype=torch.float64)

    def add(self, points: Int[Tensor, " some"], states: Float[Tensor, "some dim"]) -> None:
        """Add states to the sums of their points."""
        place = self._place[points]
        few = place < 0
        self._rough.index_add_(0, points[few], states[few].float())
        self._fine.index_add_(0, place[~few], states[~few].double())

    def means(self) -> Float[Tensor, "point dim"]:
        """Float32, in place of the sums."""
        self._rough /= self._occurrences[:, None]
        self._rough[self._many] = (self._fine / self._occurrences[self._many, None]).float()
        return self._rough


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
    sums: list[_Sums],
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
    for index, state in states.items():
        sums[index].add(point[where], state[where].cpu())
    if len(sums) > len(states):
        with undisturbed(view.model), torch.no_grad():
            normed = view.normed(states[view.num_layers][where])
        _check_width(view, normed)
        sums[-1].add(point[where], normed.cpu())


def _check_width(view: View, normed: Tensor) -> None:
    if normed.shape[-1] != view.width:
        raise ValueError(
            f"final_norm: this model's read-out changes the width from {view.width} to "
            f"{normed.shape[-1]}; clouds of different dimension cannot be compared, leave it out"
        )
