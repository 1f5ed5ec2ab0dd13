"""The few directions in which clouds of states are looked at, the same for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tokendepth.measure.clouds import Clouds

CameraKind = Literal["balanced", "unscaled", "per_transition", "full"]
CAMERAS: tuple[CameraKind, ...] = get_args(CameraKind)


@dataclass(frozen=True, kw_only=True)
class Camera:
    """An orthonormal basis, applied to states as they are."""

    kind: CameraKind
    basis: Float[Tensor, "dim few"]
    explained: float
    """Share of the variance that it was made from."""

    def see(self, states: Float[Tensor, "point dim"]) -> Float[Tensor, "point few"]:
        """Coordinates of states in the basis, float64."""
        return states.double() @ self.basis


def make_camera(kind: CameraKind, num_directions: int, states: Sequence[Tensor]) -> Camera:
    """The principal directions of some clouds, each about its own mean.

    Args:
        kind: `balanced` and `per_transition` give every layer the same weight, by dividing its
            covariance by its trace; `unscaled` lets large layers count for more; `full` keeps
            all directions.
        num_directions: how many to keep; no more than there are are kept.
        states: the clouds, float32: all layers, or the two of a transition.
    """
    dim = states[0].shape[1]
    if kind == "full":
        return Camera(kind=kind, basis=torch.eye(dim, dtype=torch.float64), explained=1.0)
    total = torch.zeros(dim, dim, dtype=torch.float64)
    for cloud in states:
        covariance = _covariance(cloud)
        spread = covariance.trace()
        if kind != "unscaled" and spread > 0:
            covariance /= spread
        total += covariance
    values, vectors = torch.linalg.eigh(total)
    few = min(num_directions, dim)
    explained = float(values[-few:].sum() / values.sum())
    return Camera(kind=kind, basis=vectors[:, -few:].flip(1), explained=explained)


def cameras(
    kind: CameraKind, num_directions: int, clouds: Clouds, pairs: Sequence[tuple[int, int]]
) -> list[Camera]:
    """The camera of each pair of layers: the same for all, unless `per_transition`."""
    if kind == "per_transition":
        return [
            make_camera(kind, num_directions, [clouds.states[at] for at in pair]) for pair in pairs
        ]
    return [make_camera(kind, num_directions, clouds.states)] * len(pairs)


def _covariance(cloud: Float[Tensor, "point dim"]) -> Float[Tensor, "dim dim"]:
    centred = cloud.double()
    centred = centred - centred.mean(dim=0)
    return centred.T @ centred / len(centred)
