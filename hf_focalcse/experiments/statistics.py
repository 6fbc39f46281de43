"""Paired tests of two systems: over seeds (t) and over sentence pairs (bootstrap, permutation); numpy in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

BLOCK = 2**22  # numbers held at a time
SAME = 1e-9  # correlations nearer than this are equal: rounding is no finding
LEVEL = 0.95


@dataclass(frozen=True)
class SeedTest:
    """Differences A - B over n seeds. Where fewer than two seeds, or seeds that all differ by the same, allow none:
    p, low and high (the 95 % confidence interval of the mean), d (Cohen's) and g (Hedges') are None."""

    n: int
    mean: float
    deviation: float | None
    t: float | None = None
    p: float | None = None
    low: float | None = None
    high: float | None = None
    d: float | None = None
    g: float | None = None


def compare_seeds(a: Sequence[float], b: Sequence[float]) -> SeedTest:
    """The paired t-test, two-sided: (n,), (n,) scores of the same seeds."""
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    n, mean = len(difference), float(difference.mean())
    if n < 2:
        return SeedTest(n, mean, None)
    deviation = float(difference.std(ddof=1))
    if deviation <= 1e-9 * max(1.0, abs(mean)):
        return SeedTest(n, mean, deviation)
    error = deviation / math.sqrt(n)
    t = mean / error
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * error
    d = mean / deviation
    correction = (
        math.exp(math.lgamma((n - 1) / 2) - math.lgamma((n - 2) / 2)) / math.sqrt((n - 1) / 2) if n > 2 else None
    )
    return SeedTest(
        *(n, mean, deviation, t, float(2 * stats.t.sf(abs(t), n - 1)), mean - half, mean + half, d),
        None if correction is None else d * correction,
    )


@dataclass(frozen=True)
class PairTest:
    """Difference of Spearman x 100, mean over the seeds, on pairs drawn anew. low, high: the 95 % percentile interval
    of the bootstrap; p_bootstrap: twice the share of resamples on the other side of 0; p: of the permutation."""

    pairs: int
    resamples: int
    difference: float
    low: float
    high: float
    p_bootstrap: float
    p: float


def compare_pairs(gold: np.ndarray, a: np.ndarray, b: np.ndarray, resamples: int, seed: int = 0) -> PairTest:
    """gold: (N,); a, b: (S, N) cosines of the same pairs for S seeds.

    The unit is the pair: one that is drawn, or swapped, is so for all seeds and both systems.
    """
    return summarise(len(gold), *resample(gold, a, b, resamples, seed))


def resample(
    gold: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    resamples: int,
    seed: int = 0,
    units: np.ndarray | None = None,
    universe: int = 0,
) -> tuple[float, np.ndarray, np.ndarray]:
    """The difference as it is, on pairs drawn anew, and with the systems swapped at random, each (resamples,).

    units: (N,) int64, which of ``universe`` units each pair is; a unit is drawn and swapped as one, and by the same
    seed alike in every set that has it. Without them each pair is one.
    """
    if units is None:
        units, universe = np.arange(len(gold)), len(gold)
    rng = np.random.default_rng(seed)
    observed = float(spearman_differences(gold, a, b, np.ones((1, len(gold))))[0])
    blocks = [spearman_differences(gold, a, b, counts[:, units]) for counts in draw_counts(universe, resamples, rng)]
    return observed, np.concatenate(blocks), swapped_differences(gold, a, b, units, universe, resamples, rng)


def summarise(pairs: int, observed: float, drawn: np.ndarray, swapped: np.ndarray) -> PairTest:
    """What `resample` found -> interval and p values; none of them is 0, for the data are one resample too."""
    low, high = np.quantile(drawn, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    side = int(min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0)))
    beyond = int(np.count_nonzero(np.abs(swapped) >= abs(observed) - SAME))
    return PairTest(
        *(pairs, len(drawn), observed, float(low), float(high)),
        min(1.0, 2 * (side + 1) / (len(drawn) + 1)),
        (beyond + 1) / (len(swapped) + 1),
    )


def draw_counts(n: int, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each of n pairs is in a resample of n, in blocks (R, n)."""
    step = max(BLOCK // n, 1)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def spearman_differences(gold: np.ndarray, a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean over seeds of Spearman(gold, a) - Spearman(gold, b), x 100, for each row of ``weights``: (R, N) -> (R,).

    A pair with weight w stands there w times. Values are sorted once; a resample's ranks are running sums of weights.
    """
    centred = _standard(weighted_ranks(gold, weights), weights)
    total = np.zeros(len(weights))
    for rows, sign in ((a, 1), (b, -1)):
        for row in rows:
            ranks = _standard(weighted_ranks(row, weights), weights)
            total += sign * np.einsum("rn,rn,rn->r", weights, centred, ranks)
    return 100 * total / len(a)


def weighted_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean ranks of the values of a sample in which each is there ``weights`` times: (N,), (R, N) -> (R, N)."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=np.nan) != 0)  # of groups of equal values
    sizes = np.diff(starts, append=len(values))
    groups = np.add.reduceat(weights[:, order], starts, axis=1)
    middle = np.cumsum(groups, axis=1) - (groups - 1) / 2
    ranks = np.empty_like(weights)
    ranks[:, order] = np.repeat(middle, sizes, axis=1)
    return ranks


def _standard(ranks: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of weighted mean 0 and weighted length 1, so that a product is a correlation."""
    drawn = np.maximum(weights.sum(axis=1), 1)  # of a small set beside large ones there may be nothing
    ranks -= (np.einsum("rn,rn->r", weights, ranks) / drawn)[:, None]
    length = np.sqrt(np.einsum("rn,rn,rn->r", weights, ranks, ranks))
    return np.divide(ranks, length[:, None], out=ranks, where=length[:, None] > 0)


def swapped_differences(
    gold: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    units: np.ndarray,
    universe: int,
    resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The difference after the systems were swapped on half of the units, at random: (resamples,).

    What is swapped are ranks, not cosines: two systems spread their cosines differently, their ranks alike. The
    correlations are made anew of what each system then has, whose sums are linear in the swaps.
    """
    n, ones = len(gold), np.ones((1, len(gold)))
    centred = _standard(weighted_ranks(gold, ones), ones)[0]
    x, y = (np.stack([_standard(weighted_ranks(row, ones), ones)[0] for row in rows]) for rows in (a, b))  # (S, N)
    sums = np.stack([centred * (y - x), y - x, y * y - x * x])  # (3, S, N): what a swap adds to the sums of a
    of_unit = np.stack([np.bincount(units, weights=row, minlength=universe) for row in sums.reshape(-1, n)], 1)
    found = []
    step = max(BLOCK // universe, 1)
    for start in range(0, resamples, step):
        swapped = rng.integers(2, size=(min(step, resamples - start), universe), dtype=np.int8)
        product, mean, square = (swapped @ of_unit).reshape(len(swapped), 3, -1).transpose(1, 0, 2)  # each (R, S)
        sides = [
            (rows @ centred + sign * product) / np.sqrt(np.maximum(1 + sign * square - mean * mean / n, SAME))
            for rows, sign in ((x, 1), (y, -1))
        ]
        found.append(100 * (sides[0] - sides[1]).mean(1))
    return np.concatenate(found)


def holm(p: Sequence[float | None]) -> list[float | None]:
    """p values corrected for their number by Holm's method, in their order; None stays and counts as no test."""
    tested = sorted((value, i) for i, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, i) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * value))
        corrected[i] = highest
    return corrected
