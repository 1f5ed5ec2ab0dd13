"""Every quantity of one transition between two layers, over some seeds."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from tokendepth.measure.assignment import assign
from tokendepth.measure.gaussian_map import covariance, linear_part
from tokendepth.measure.moves import (
    RESOLVABLE,
    Agreement,
    Cost,
    Sample,
    agreement,
    calibrate,
    corrected_cost,
    efficiency,
    expansion,
    extrapolated,
    fall,
    halved_cost,
    move_sizes,
    resolvable,
    sliced,
    sorted_projections,
    three_samples,
    unit_directions,
    verdict,
)

Cloud = Float[np.ndarray, "point dim"]
NOTHING = 1e-24  # of the spread: a P that small is rounding


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A mean over seeds and their range; None where it cannot be told."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What was measured between two layers."""

    source: int
    target: int
    final_norm: bool
    """Whether the target is taken after the final norm."""
    a: float
    p: float
    floor: float
    """Mean over seeds, of the target layer."""
    e: Reading
    ebar: Reading
    ebar_error: float | None
    """Standard error of ebar over samples of n points, from the prices of its assignments."""
    ebar_extrapolated: Reading
    """ebar for samples without end, if its bias falls as the floor does from n/2 to n."""
    ebar_calibration: Reading
    calibration: str
    """`radius` where the radius-matched expansion could be told, else `move`: an expansion with
    moves as large as the real ones."""
    e_calibration: Reading
    """Of a pure shift by the mean move."""
    sliced: float
    """ebar is at least this; no sampling."""
    rho: Reading
    rho_by_coordinate: float | None
    rho_null: float | None
    cosine: float | None
    gaussian_r2: float | None
    remainder_rho: Reading
    """Agreement of what the Gaussian map leaves; None where that is too little to tell."""
    n: int
    n_needed: int | None
    """Points a sample at which ebar would be resolvable, by the floor's fall from n/2 to n."""
    gap: float
    """The largest relative duality gap of its assignments."""
    explained: float
    """Share of variance that the camera sees."""
    verdict: str

    @property
    def name(self) -> str:
        """Its layers in words."""
        return f"{self.source}-{self.target}" + (" normed" if self.final_norm else "")

    @property
    def resolvable(self) -> bool:
        """Whether ebar can be told: the floor is at most 30 % of P."""
        return resolvable(self.floor, self.p)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it, with what is derived."""
        return {**dataclasses.asdict(self), "resolvable": self.resolvable}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Transition":
        """From what `to_dict` gave."""
        stored = {name: value for name, value in stored.items() if name != "resolvable"}
        for name, value in stored.items():
            if isinstance(value, dict):
                stored[name] = Reading(**value)
        return cls(**stored)


@dataclass(frozen=True, kw_only=True)
class _Seed:
    cost: Cost
    half: tuple[float, float]
    """Value and floor of n/2 points."""
    radius: tuple[float, float]
    move: tuple[float, float]
    shift: float | None
    agreement: Agreement
    remainder_rho: float | None


def measure_transition(
    x: Cloud,
    y: Cloud,
    *,
    layers: tuple[int, int],
    n: int,
    seeds: Sequence[int],
    num_directions: int = 2000,
    explained: float = 1.0,
    final_norm: bool = False,
) -> Transition:
    """Measure how x moves to y.

    Args:
        x: states of the source layer, one row a point.
        y: states of the same points at the target layer.
        layers: their numbers.
        n: points of each sample; three disjoint ones are drawn.
        seeds: of the samples, one repetition each.
        num_directions: of the sliced bound.
        explained: share of variance that the coordinates stand for.
        final_norm: the target is taken after the final norm.

    Raises:
        ValueError: fewer than 3 n points.
    """
    a, p = move_sizes(x, y)
    xc, yc = x - x.mean(axis=0), y - y.mean(axis=0)
    if p <= NOTHING * float(np.square(xc).sum(axis=1).mean()):
        p, yc = 0.0, xc  # rounding of a shift, which has no direction to agree with
    linear = linear_part(covariance(xc), covariance(yc))
    remainder = yc - xc @ linear
    left = float(np.square(remainder).sum(axis=1).mean())
    random = np.random.default_rng(seeds[0])
    directions = unit_directions(random, x.shape[1], num_directions)
    bound = _sliced(xc, yc, directions)
    runs = [_one_seed(xc, yc, linear, (a, p, left), n, seed) for seed in seeds]
    floor = float(np.mean([run.cost.floor for run in runs]))
    alpha = fall(floor, float(np.mean([run.half[1] for run in runs])))
    error = float(np.mean([run.cost.error**2 for run in runs])) ** 0.5
    radius = all(run.radius[1] <= RESOLVABLE for run in runs)
    calibrations = [run.radius[0] if radius else run.move[0] for run in runs]
    ebar = [_over(run.cost.value, p) for run in runs]
    tell_e, tell_ebar = resolvable(floor, a + p), resolvable(floor, p)
    return Transition(
        source=layers[0],
        target=layers[1],
        final_norm=final_norm,
        a=a,
        p=p,
        floor=floor,
        e=_reading([efficiency(a, p, value) for value in ebar] if tell_e else []),
        ebar=_reading(ebar if tell_ebar else []),
        ebar_error=_over(error, p) if tell_ebar else None,
        ebar_extrapolated=_reading(_without_end(runs, p, alpha) if tell_ebar else []),
        ebar_calibration=_reading(calibrations if tell_ebar else []),
        calibration="radius" if radius else "move",
        e_calibration=_reading([run.shift for run in runs if run.shift is not None]),
        sliced=_over(bound, p),
        rho=_reading([run.agreement.rho for run in runs]),
        rho_by_coordinate=_mean([run.agreement.rho_by_coordinate for run in runs]),
        rho_null=_mean([run.agreement.rho_null for run in runs]),
        cosine=_mean([run.agreement.cosine for run in runs]),
        gaussian_r2=1 - left / p if p > 0.0 else None,
        remainder_rho=_reading([r.remainder_rho for r in runs if r.remainder_rho is not None]),
        n=n,
        n_needed=_needed(n, floor, alpha, p),
        gap=max(run.cost.gap for run in runs),
        explained=explained,
        verdict=verdict(a, p, floor, float(np.mean(ebar)), float(np.mean(calibrations))),
    )


def _one_seed(
    xc: Cloud,
    yc: Cloud,
    linear: Float[np.ndarray, "dim dim"],
    sizes: tuple[float, float, float],
    n: int,
    seed: int,
) -> _Seed:
    a, p, left = sizes
    random = np.random.default_rng(seed)
    samples = three_samples(random, len(xc), n)
    source, target, second = samples
    cost = corrected_cost(xc[source], yc[target], yc[second])
    spread = float(np.square(xc).sum(axis=1).mean())
    optimal = yc[target][cost.permutation] - xc[source]
    return _Seed(
        cost=cost,
        half=halved_cost(xc[source], yc[target], yc[second]),
        radius=calibrate(xc, expansion(xc, yc), samples),
        move=calibrate(xc, 1 + (p / spread) ** 0.5, samples),
        shift=_shift(xc, a, samples),
        agreement=agreement(optimal, (yc - xc)[source], random),
        remainder_rho=_remainder(xc @ linear, yc, cost.floor, left, samples, random),
    )


def _shift(xc: Cloud, a: float, samples: tuple[Sample, Sample, Sample]) -> float | None:
    """The e that is read from a pure shift; None where the floor hides it."""
    source, target, second = samples
    cost = corrected_cost(xc[source], xc[target], xc[second])
    return (a + cost.value) / a if a > 0.0 and resolvable(cost.floor, a) else None


def _remainder(
    pushed: Cloud,
    yc: Cloud,
    floor: float,
    left: float,
    samples: tuple[Sample, Sample, Sample],
    random: np.random.Generator,
) -> float | None:
    """Whether what the Gaussian map leaves moves optimally; None where it leaves too little."""
    if not resolvable(floor, left):
        return None
    source, target, _ = samples
    found = assign(pushed[source], yc[target])
    optimal = yc[target][found.permutation] - pushed[source]
    return agreement(optimal, (yc - pushed)[source], random).rho


def _sliced(xc: Cloud, yc: Cloud, directions: np.ndarray) -> float:
    """In chunks of directions, since a cloud seen along all of them is large."""
    parts = np.array_split(directions, -(-directions.shape[1] // 200), axis=1)
    seen = [
        sliced(sorted_projections(xc, part), sorted_projections(yc, part), xc.shape[1])
        * part.shape[1]
        for part in parts
    ]
    return sum(seen) / directions.shape[1]


def _over(value: float, p: float) -> float:
    return value / p if p > 0.0 else 0.0


def _mean(values: Sequence[float]) -> float | None:
    return _reading(values).value


def _reading(values: Sequence[float]) -> Reading:
    kept = [float(value) for value in values if np.isfinite(value)]
    if not kept:
        return Reading(value=None, low=None, high=None)
    return Reading(value=float(np.mean(kept)), low=min(kept), high=max(kept))


def _without_end(runs: Sequence[_Seed], p: float, alpha: float) -> list[float]:
    """What each seed gives, extrapolated; none where the floor hardly falls."""
    found = [extrapolated(run.cost.value, run.half[0], alpha) for run in runs]
    return [_over(value, p) for value in found if value is not None]


def _needed(n: int, floor: float, alpha: float, p: float) -> int | None:
    """Points at which the floor, falling like n^-alpha, is 0.3 P; None if it does not fall."""
    if resolvable(floor, p):
        return n
    if alpha <= 0.01 or p <= 0.0:
        return None
    needed = n * (floor / (RESOLVABLE * p)) ** (1 / alpha)
    return int(needed) if needed < 1e15 else None
