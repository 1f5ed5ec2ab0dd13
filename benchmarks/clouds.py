"""Pairs of clouds that are easy and hard for an assignment, each in one line."""

from collections.abc import Callable

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


def middle(random: np.random.Generator, n: int, dim: int) -> Pair:
    """A linear map and noise, on independent samples, as between the middle layers of a model."""
    matrix = np.eye(dim) + 0.5 * random.standard_normal((dim, dim)) / dim**0.5
    x, z, noise = random.standard_normal((3, n, dim))
    return x, z @ matrix + 0.5 * noise


def independent(random: np.random.Generator, n: int, dim: int) -> Pair:
    """Two samples of one normal distribution."""
    x, y = random.standard_normal((2, n, dim))
    return x, y


def clustered(random: np.random.Generator, n: int, dim: int) -> Pair:
    """20 tight clusters whose sizes differ between the clouds."""
    centres = 3 * random.standard_normal((20, dim))
    x, y = 0.05 * random.standard_normal((2, n, dim))
    return centres[random.integers(20, size=n)] + x, centres[random.integers(20, size=n)] + y


def power_law(random: np.random.Generator, n: int, dim: int) -> Pair:
    """Two samples with singular values 4 k^-1.5, as of the states of a model."""
    x, y = random.standard_normal((2, n, dim)) * 4 * np.arange(1, dim + 1) ** -1.5
    return x, y


def warped(random: np.random.Generator, n: int, dim: int) -> Pair:
    """A cubic in turned coordinates, which no linear map comes near."""
    turn = np.linalg.qr(random.standard_normal((dim, dim)))[0]
    x, y = random.standard_normal((2, n, dim))
    return x, y @ turn + (y @ turn) ** 3 / 3


def near(random: np.random.Generator, n: int, dim: int) -> Pair:
    """A cloud and itself with noise, shuffled: a dense solver needs no search."""
    x, noise = random.standard_normal((2, n, dim))
    return x, (x + 0.3 * noise)[random.permutation(n)]


CLOUDS: dict[str, Callable[[np.random.Generator, int, int], Pair]] = {
    each.__name__: each for each in (middle, independent, clustered, power_law, warped, near)
}
