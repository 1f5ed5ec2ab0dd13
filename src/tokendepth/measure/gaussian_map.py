"""The optimal map between Gaussians with the means and covariances of two clouds.

T(x) = m' + M (x - m) with M = S^-1/2 (S^1/2 S' S^1/2)^1/2 S^-1/2, symmetric and positive definite
(Dowson and Landau, 1982). Covariances are of whole clouds, in float64, with a small ridge.
"""

import numpy as np
from jaxtyping import Float

RIDGE = 1e-8  # of the mean variance


def covariance(centred: Float[np.ndarray, "point dim"]) -> Float[np.ndarray, "dim dim"]:
    """Second moments of a cloud with mean zero, plus the ridge."""
    second = centred.T @ centred / len(centred)
    return second + RIDGE * np.trace(second) / len(second) * np.eye(len(second))


def square_root(matrix: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """Of a symmetric positive matrix, by its eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def linear_part(
    source: Float[np.ndarray, "dim dim"], target: Float[np.ndarray, "dim dim"]
) -> Float[np.ndarray, "dim dim"]:
    """M of two covariances.

    Args:
        source: positive definite.
        target: positive.
    """
    root = square_root(source)
    inverse = np.linalg.inv(root)
    matrix = inverse @ square_root(root @ target @ root) @ inverse
    return (matrix + matrix.T) / 2
