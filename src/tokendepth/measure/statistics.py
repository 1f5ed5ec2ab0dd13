"""Means with intervals: a bootstrap over documents, Student's t over a few paired runs."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over tokens and the 95 % interval of resampling whole documents.

    `low` and `high` are None where fewer than two documents hold such a token: tokens of one
    document are not independent draws, and nothing can be said about other documents.
    """

    value: float
    low: float | None
    high: float | None


def mean_over_tokens(
    values: Float[np.ndarray, " token"], documents: Int[np.ndarray, " token"]
) -> Estimate:
    """The mean of the values, with a percentile bootstrap over documents (`scipy.stats.bootstrap`).

    Args:
        values: one number a token; at least one.
        documents: the document of each token.
    """
    _, member = np.unique(documents, return_inverse=True)
    counts = np.bincount(member).astype(float)
    if len(counts) < 2:
        return Estimate(value=float(values.mean()), low=None, high=None)
    interval = stats.bootstrap(
        (np.bincount(member, weights=values), counts),
        lambda sums, sizes, axis: sums.sum(axis=axis) / sizes.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=NUM_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value=float(values.mean()), low=float(interval.low), high=float(interval.high))


def mean_of_pairs(differences: Float[np.ndarray, " pair"]) -> Estimate:
    """The mean of paired differences with its 95 % interval by Student's t.

    Not a bootstrap: resampling three seeds gives intervals that are far too narrow.

    Args:
        differences: one a pair; at least one.
    """
    mean = float(differences.mean())
    if len(differences) < 2:
        return Estimate(value=mean, low=None, high=None)
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5
    reach = error * float(stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    return Estimate(value=mean, low=mean - reach, high=mean + reach)
