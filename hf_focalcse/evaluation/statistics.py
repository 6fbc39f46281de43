"""The paired bootstrap: units drawn again, and what a difference of two encoders is on what was drawn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK = 2**22  # numbers that are held in memory at a time
SAME = 1e-9  # correlations that differ by less are treated as equal: the difference is rounding
LEVEL = 0.95


def percentile_interval(drawn: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of resampled differences: (R,) -> (low, high)."""
    low, high = np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return float(low), float(high)


def draw_counts(n: int, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each of n pairs occurs in a resample of n pairs, in blocks of shape (R, n)."""
    step = max(BLOCK // n, 1)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def spearman_differences(gold: np.ndarray, a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean over seeds of Spearman(gold, a) - Spearman(gold, b), x 100, for each row of ``weights``: (R, N) -> (R,).

    A pair of weight w counts w times. The values are sorted once; the ranks of a resample are running sums of weights.
    """
    centred = standardise(weighted_ranks(gold, weights), weights)
    total = np.zeros(len(weights))
    for rows, sign in ((a, 1), (b, -1)):
        for row in rows:
            ranks = standardise(weighted_ranks(row, weights), weights)
            total += sign * np.einsum("rn,rn,rn->r", weights, centred, ranks)
    return 100 * total / len(a)


def weighted_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean ranks in a sample that contains each value ``weights`` times: (N,), (R, N) -> (R, N)."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=np.nan) != 0)  # of groups of equal values
    sizes = np.diff(starts, append=len(values))
    groups = np.add.reduceat(weights[:, order], starts, axis=1)
    middle = np.cumsum(groups, axis=1) - (groups - 1) / 2
    ranks = np.empty_like(weights)
    ranks[:, order] = np.repeat(middle, sizes, axis=1)
    return ranks


def standardise(ranks: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Ranks with weighted mean 0 and weighted length 1, so that their product is a correlation."""
    drawn = np.maximum(weights.sum(axis=1), 1)  # a resample of all sets may draw no pair of a small one
    ranks -= (np.einsum("rn,rn->r", weights, ranks) / drawn)[:, None]
    length = np.sqrt(np.einsum("rn,rn,rn->r", weights, ranks, ranks))
    return np.divide(ranks, length[:, None], out=ranks, where=length[:, None] > 0)


def mean_differences(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of the units' differences in each resample: (N,), (R, N) -> (R,)."""
    return (weights @ values) / np.maximum(weights.sum(axis=1), 1)
