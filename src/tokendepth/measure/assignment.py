"""Exact assignment between two clouds, or for a matrix of costs, with a proof of optimality.

Memory grows with the number of points, not with its square; `matching_rounds` holds the method. Its
prices start from what is known about clouds:

* for clouds that a linear map explains, the optimal map between Gaussians with their means and
  covariances: A is symmetric and positive definite, so -2 x·y >= -x·Ax - y·A⁻¹y, and what stands on
  the right belongs to a row and to a column;
* else nothing.

Both are tried on a few hundred points, since a linear map tears clouds that lie in tight clusters.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Real

from tokendepth.measure.gaussian_map import covariance, linear_part
from tokendepth.measure.matching_rounds import match
from tokendepth.measure.pair_costs import GivenCosts, PairCosts, SquaredDistances

TRIAL = 384  # points of each cloud on which starts are compared
LOOSE = 0.2  # of the Gaussian bound that the plain one must reach; less means tight clusters
LARGEST = 1e150  # coordinates beyond it cannot be squared


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which target belongs to each source, and the prices that prove it.

    For every pair `dual_source[i] + dual_target[j] <= cost[i, j]` up to rounding, so no assignment
    costs less than the sum of both.
    """

    permutation: Int[np.ndarray, " source"]
    """Index into the targets for each source; -1 where sources outnumber the targets."""
    cost: float
    """Mean over the matched pairs."""
    gap: float
    """How far the proof falls short of the cost, relative to it; some 1e-15 is rounding."""
    dual_source: Float[np.ndarray, " source"]
    dual_target: Float[np.ndarray, " target"]


def assign(
    source: Real[np.ndarray, "source dim"], target: Real[np.ndarray, "target target_dim"]
) -> Assignment:
    """Pair two clouds at the smallest sum of squared Euclidean distances.

    Args:
        source: points, computed with in float64.
        target: points of the same dimension. Where the numbers differ, every point of the
            smaller cloud is matched.

    Raises:
        ValueError: an empty cloud, dimensions that differ, or an entry that is NaN, infinite or
            too large to be squared; the message says where.
    """
    x, y = _points("source", source), _points("target", target)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"target: got points of dimension {y.shape[1]} for a source of dimension {x.shape[1]}; "
            "both clouds must lie in the same space"
        )
    if len(x) > len(y):
        return _turned(assign(y, x))
    # Shuffled, so that the order in which points come cannot make a search slow.
    random = np.random.default_rng(0)
    rows, columns = random.permutation(len(x)), random.permutation(len(y))
    power = _power_of_two(x, y)
    costs = SquaredDistances(np.ldexp(x[rows], power), np.ldexp(y[columns], power))
    found = _proved(costs, *_starting_prices(costs))
    permutation = np.empty(len(x), np.int64)
    permutation[rows] = columns[found.permutation]
    dual_source, dual_target = np.empty(len(x)), np.empty(len(y))
    dual_source[rows] = np.ldexp(found.dual_source, -2 * power)
    dual_target[columns] = np.ldexp(found.dual_target, -2 * power)
    return Assignment(
        permutation=permutation,
        cost=float(np.ldexp(found.cost, -2 * power)),
        gap=found.gap,
        dual_source=dual_source,
        dual_target=dual_target,
    )


def assign_cost(matrix: Real[np.ndarray, "source target"]) -> Assignment:
    """Pair rows and columns of a matrix at the smallest sum of entries.

    Args:
        matrix: costs, of either sign, computed with in float64.

    Raises:
        ValueError: an empty matrix, or an entry that is NaN or infinite; the message says where.
    """
    costs = _checked("matrix", matrix)
    rows, columns = costs.shape
    if rows > columns:
        return _turned(assign_cost(costs.T))
    given = GivenCosts(costs)
    u, v = np.zeros(rows), np.zeros(columns)
    if rows == columns:
        u = given.least
        for row in range(rows):
            np.minimum(v if row else costs[0] - u[0], costs[row] - u[row], out=v)
    return _proved(given, u, v)


def _proved(costs: PairCosts, u: np.ndarray, v: np.ndarray) -> Assignment:
    matching = match(costs, u, v)
    exact = costs.of(np.arange(costs.shape[0]), matching.mate)
    short = math.fsum(np.concatenate([exact, -matching.u, -matching.v]))
    size = math.fsum(np.abs(exact))
    return Assignment(
        permutation=matching.mate,
        cost=math.fsum(exact) / len(exact),
        gap=short / size if size > 0.0 else (0.0 if short == 0.0 else math.inf),
        dual_source=matching.u,
        dual_target=matching.v,
    )


def _turned(found: Assignment) -> Assignment:
    """Sources and targets exchanged."""
    permutation = np.full(len(found.dual_target), -1)
    permutation[found.permutation] = np.arange(len(found.permutation))
    return Assignment(
        permutation=permutation,
        cost=found.cost,
        gap=found.gap,
        dual_source=found.dual_target,
        dual_target=found.dual_source,
    )


def _points(name: str, points: np.ndarray) -> np.ndarray:
    checked = _checked(name, points)
    far = np.abs(checked) > LARGEST
    if far.any():
        row, axis = np.argwhere(far)[0]
        raise ValueError(
            f"{name}: got {checked[row, axis]:g} at [{row}, {axis}]; its square overflows. Scale "
            f"both clouds so that coordinates stay below {LARGEST:g}"
        )
    return checked


def _checked(name: str, entries: np.ndarray) -> np.ndarray:
    """As contiguous float64."""
    array = np.ascontiguousarray(entries, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"{name}: got shape {array.shape}; it must have two dimensions, neither of them empty"
        )
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{name}: got {array[row, column]} at [{row}, {column}] ({int(bad.sum())} such "
            "entries); every entry must be a finite number"
        )
    return array


def _power_of_two(x: np.ndarray, y: np.ndarray) -> int:
    """What brings the clouds' spread near 1 without rounding."""
    low = np.minimum(x.min(axis=0), y.min(axis=0))
    spread = float((np.maximum(x.max(axis=0), y.max(axis=0)) - low).max())
    return -int(np.frexp(spread)[1]) if spread > 0.0 else 0


def _starting_prices(costs: SquaredDistances) -> tuple[np.ndarray, np.ndarray]:
    """The better of two starts, by the bound that each gives on some of the points."""
    x, y = costs.source, costs.target
    nothing = np.zeros(len(x)), np.zeros(len(y))
    if len(x) != len(y) or len(x) <= x.shape[1] or min(x.std(), y.std()) == 0.0:
        return nothing
    gaussian = _gaussian_prices(x, y)
    some = slice(0, TRIAL)  # the clouds are shuffled
    block = costs.between(some, some)
    plain, linear = (_bound(block, prices[some]) for prices in (nothing[1], gaussian[1]))
    return gaussian if linear > plain >= LOOSE * linear else nothing


def _bound(block: Float[np.ndarray, "some some"], v: Float[np.ndarray, " some"]) -> float:
    """What no assignment of these points can cost less than, by these prices of columns."""
    return float((block - v).min(axis=1).sum() + v.sum())


def _gaussian_prices(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prices |x|² - x·Ax and |y|² - y·A⁻¹y, plus what the distance of means adds."""
    apart = x.mean(axis=0) - y.mean(axis=0)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    linear = linear_part(covariance(x), covariance(y))
    u = np.square(x).sum(axis=1) - ((x @ linear) * x).sum(axis=1) + 2 * x @ apart + apart @ apart
    v = np.square(y).sum(axis=1) - (np.linalg.solve(linear, y.T).T * y).sum(axis=1) - 2 * y @ apart
    return u, v
