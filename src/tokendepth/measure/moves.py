"""How a cloud of states moves from one layer to another, and how the cheapest way would move it.

Notation, after the optimal-transport analysis of transformer depth: x and y are the states of the
same points at two layers, d = y - x, A = |mean d|² and P = mean |d - mean d|². W is the squared
Wasserstein distance between the centred clouds, less its bias; ebar = W / P and
e = (A + ebar P) / (A + P), so 1 is the cheapest way there is.

W comes from exact assignment between *independent* samples of the two clouds: against a paired
sample every small move would look optimal. Two samples of one cloud are not 0 apart either; that
distance, for the target cloud, is the floor that is taken off and that decides what can be told.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from tokendepth.measure.assignment import assign

RESOLVABLE = 0.30  # floor over the cost in question, at most
MOSTLY_SHIFT = 0.01  # P / (A + P) up to which the move is a shift, which is always optimal
LEAST_FALL = 0.05  # a bias that falls slower than n^-0.05 is not extrapolated
TOLERANCE = 0.15  # between a reading and the reading of a coupling known to be optimal

Cloud = Float[np.ndarray, "point dim"]
Sample = Int[np.ndarray, " some"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A bias-corrected squared distance between two clouds."""

    value: float
    """Raw cost less the floor."""
    floor: float
    permutation: Int[np.ndarray, " some"]
    gap: float
    """The larger relative gap of the two assignments."""
    error: float
    """Standard error of the value over samples, to first order: a point that is drawn changes a
    cost by its price, so the variances of the prices are those of the costs."""


def move_sizes(x: Cloud, y: Cloud) -> tuple[float, float]:
    """A and P of the whole clouds."""
    moves = y - x
    mean = moves.mean(axis=0)
    return float(mean @ mean), float(np.square(moves - mean).sum(axis=1).mean())


def three_samples(
    random: np.random.Generator, num_points: int, n: int
) -> tuple[Sample, Sample, Sample]:
    """Disjoint index sets for source, target and second target.

    Raises:
        ValueError: not enough points for three.
    """
    if 3 * n > num_points:
        raise ValueError(
            f"n: got {n}, which takes {3 * n} points for three disjoint samples; the cloud has "
            f"{num_points}. Give more text, or n up to {num_points // 3}"
        )
    drawn = random.permutation(num_points)
    return drawn[:n], drawn[n : 2 * n], drawn[2 * n : 3 * n]


def corrected_cost(source: Cloud, target: Cloud, second_target: Cloud) -> Cost:
    """Exact cost between independent samples, less the cost between two of the target.

    Args:
        source: a sample of the centred source cloud.
        target: a sample of the centred target cloud, of other points.
        second_target: another of the target cloud.
    """
    raw, floor = assign(source, target), assign(second_target, target)
    prices = (raw.dual_source, raw.dual_target - floor.dual_target, floor.dual_source)
    return Cost(
        value=raw.cost - floor.cost,
        floor=floor.cost,
        permutation=raw.permutation,
        gap=max(raw.gap, floor.gap),
        error=(sum(float(each.var()) for each in prices) / len(source)) ** 0.5,
    )


def halved_cost(source: Cloud, target: Cloud, second_target: Cloud) -> tuple[float, float]:
    """Value and floor, as of `corrected_cost`, at half the size: the mean over both halves."""
    halves = (slice(0, len(source) // 2), slice(len(source) // 2, 2 * (len(source) // 2)))
    costs = [corrected_cost(source[half], target[half], second_target[half]) for half in halves]
    return sum(cost.value for cost in costs) / 2, sum(cost.floor for cost in costs) / 2


def fall(floor: float, floor_of_half: float) -> float:
    """The power alpha by which a floor falls with the size of the sample, like n^-alpha."""
    return float(np.log2(floor_of_half / floor)) if floor > 0.0 < floor_of_half else 0.0


def extrapolated(value: float, value_of_half: float, alpha: float) -> float | None:
    """The value for samples without end, if its bias falls like n^-alpha; None if it hardly falls.

    What is left of the bias after the floor is taken off falls as the floor does.
    """
    return value + (value - value_of_half) / (2**alpha - 1) if alpha > LEAST_FALL else None


def efficiency(a: float, p: float, ebar: float) -> float:
    """The whole efficiency e from ebar of its centred part: the shift is always optimal."""
    return (a + ebar * p) / (a + p)


def resolvable(floor: float, cost: float) -> bool:
    """Whether sampling noise leaves something to tell: a floor of at most 30 % of the cost."""
    return floor <= RESOLVABLE * cost


def verdict(a: float, p: float, floor: float, ebar: float, calibration: float) -> str:
    """`optimal`, `not optimal` or `not resolvable`.

    Args:
        a: squared length of the mean move.
        p: mean squared length of the centred moves.
        floor: of the target cloud.
        ebar: the reading.
        calibration: the reading of a coupling known to be optimal.
    """
    if p <= MOSTLY_SHIFT * (a + p):
        return "optimal" if resolvable(floor, a + p) else "not resolvable"
    if not resolvable(floor, p):
        return "not resolvable"
    return "optimal" if abs(ebar - calibration) <= TOLERANCE else "not optimal"


def expansion(x: Cloud, y: Cloud) -> float:
    """The factor sqrt(tr S' / tr S) by which a centred cloud gets the radius of another."""
    spread = [float(np.square(cloud - cloud.mean(axis=0)).sum(axis=1).mean()) for cloud in (x, y)]
    return (spread[1] / spread[0]) ** 0.5


def calibrate(
    centred: Cloud, factor: float, samples: tuple[Sample, Sample, Sample]
) -> tuple[float, float]:
    """The ebar read from the expansion of a cloud, which is optimal, and its floor over P.

    Args:
        centred: the whole cloud of the source layer, mean zero.
        factor: of the expansion.
        samples: source, target and second target.
    """
    p = (factor - 1) ** 2 * float(np.square(centred).sum(axis=1).mean())
    source, target, second = samples
    if p == 0.0:
        return float("nan"), float("inf")
    cost = corrected_cost(centred[source], factor * centred[target], factor * centred[second])
    return cost.value / p, cost.floor / p


def sorted_projections(
    centred: Cloud, directions: Float[np.ndarray, "dim direction"]
) -> Float[np.ndarray, "direction point"]:
    """The cloud seen along each direction, in order."""
    return np.sort((centred @ directions).T, axis=1)


def sliced(
    first: Float[np.ndarray, "direction point"],
    second: Float[np.ndarray, "direction point"],
    dim: int,
) -> float:
    """A bound from below on W: dim times the mean squared distance along directions."""
    return dim * float(np.square(first - second).mean())


def unit_directions(
    random: np.random.Generator, dim: int, count: int
) -> Float[np.ndarray, "dim direction"]:
    """Directions drawn evenly over the sphere."""
    directions = random.standard_normal((dim, count))
    return directions / np.linalg.norm(directions, axis=0)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Whether points move as the optimal map would move them."""

    rho: float
    """Spearman correlation over all pooled components."""
    rho_by_coordinate: float
    """Mean of the correlations of each coordinate: pooling weighs low-variance ones too much."""
    cosine: float
    """Median over points."""
    rho_null: float
    """rho after the moves are shuffled over points."""


def agreement(optimal: Cloud, actual: Cloud, random: np.random.Generator) -> Agreement:
    """Compare optimal with actual moves of the same points, both centred."""
    norms = np.linalg.norm(optimal, axis=1) * np.linalg.norm(actual, axis=1)
    there = norms > 0.0
    cosines = (optimal * actual).sum(axis=1)[there] / norms[there]
    columns = [spearman(*pair) for pair in zip(optimal.T, actual.T, strict=True)]
    return Agreement(
        rho=spearman(optimal.ravel(), actual.ravel()),
        rho_by_coordinate=float(np.mean(columns)),
        cosine=float(np.median(cosines)) if there.any() else float("nan"),
        rho_null=spearman(optimal.ravel(), random.permutation(actual).ravel()),
    )


def spearman(first: Float[np.ndarray, " value"], second: Float[np.ndarray, " value"]) -> float:
    """Correlation of average ranks; NaN where one side is constant."""
    ranks = [rankdata(values) for values in (first, second)]
    centred = [rank - rank.mean() for rank in ranks]
    size = float(np.linalg.norm(centred[0]) * np.linalg.norm(centred[1]))
    return float(centred[0] @ centred[1]) / size if size > 0.0 else float("nan")
