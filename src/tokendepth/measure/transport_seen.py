"""Texts to clouds as a camera sees them: what the transitions are measured on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tokendepth.adapters.view import View
from tokendepth.measure.camera import cameras
from tokendepth.measure.clouds import Clouds, capture_clouds
from tokendepth.measure.transport_options import TransportOptions
from tokendepth.text.documents import Window

Pair = tuple[int, int]
"""Two layers; the number after the last one is the last one after the final norm."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Clouds as the camera sees them: one for each end of each pair."""

    ends: dict[Pair, tuple[Float[Tensor, "point dim"], Float[Tensor, "point dim"]]]
    explained: dict[Pair, float]
    """Share of the variance that the camera sees."""
    facts: dict[str, int]
    """How many points, types and positions."""


def see(
    view: View,
    cut: Sequence[Window],
    pairs: Sequence[Pair],
    options: TransportOptions,
    on_progress: Callable[[int, int], None],
) -> Seen:
    """Run the model over all windows, and look at the states of its layers.

    Raises:
        ValueError: too few points for three samples.
        NonFiniteError: a state is NaN or infinite.
    """
    layers = view.num_layers + 1 + options.final_norm
    fit = int(options.memory_gb * 1e9 / (layers * view.width * 4))
    clouds = capture_clouds(
        view, cut, kind=options.points, max_points=max(1, fit), batch=options.batch,
        final_norm=options.final_norm, on_progress=on_progress,
    )  # fmt: skip
    if len(clouds.occurrences) < 6:
        raise ValueError(
            f"texts: got {len(clouds.occurrences)} points; three samples need at least 6. Give "
            "longer texts"
        )
    looks = cameras(options.camera, options.directions, clouds, pairs)
    states = dict(enumerate(clouds.states))
    if clouds.normed is not None:
        states[len(states)] = clouds.normed
    full = options.camera == "full"  # as it is, and shared by its transitions: it is large
    return Seen(
        ends={
            pair: (states[pair[0]], states[pair[1]])
            if full
            else (look.see(states[pair[0]]), look.see(states[pair[1]]))
            for pair, look in zip(pairs, looks, strict=True)
        },
        explained={pair: look.explained for pair, look in zip(pairs, looks, strict=True)},
        facts=_facts(clouds),
    )


def _facts(clouds: Clouds) -> dict[str, int]:
    return {
        "num_points": len(clouds.occurrences),
        "num_types": clouds.num_types,
        "num_positions": clouds.num_positions,
    }
