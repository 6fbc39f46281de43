"""Paired tests of two systems: over seeds (t-test) and over sentence pairs (bootstrap and permutation)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ..evaluation.statistics import (
    BLOCK,
    LEVEL,
    SAME,
    draw_counts,
    mean_differences,
    percentile_interval,
    spearman_differences,
    standardise,
    weighted_ranks,
)


@dataclass(frozen=True)
class SeedTest:
    """Differences A - B over n seeds, with the 95 % confidence interval of their mean, Cohen's d and Hedges' g.

    t, p, low, high, d and g are None where no test is possible: with fewer than two seeds, and where all seeds differ
    by the same amount. Hedges' g needs three seeds.
    """

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
    """The two-sided paired t-test of scores (n,) and (n,) of the same seeds."""
    ours, theirs = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    difference = ours - theirs
    n, mean = len(difference), float(difference.mean())
    if n < 2:
        return SeedTest(n, mean, None)
    deviation = float(difference.std(ddof=1))
    if deviation <= 1e-9 * max(1.0, abs(mean)):
        return SeedTest(n, mean, deviation)
    test = stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval(LEVEL)
    d, g = mean / deviation, None
    if n > 2:  # the correction of the small-sample bias of d
        g = d * math.exp(math.lgamma((n - 1) / 2) - math.lgamma((n - 2) / 2)) / math.sqrt((n - 1) / 2)
    return SeedTest(
        *(n, mean, deviation, float(test.statistic), float(test.pvalue), float(low), float(high), d, g),
    )


@dataclass(frozen=True)
class PairTest:
    """The difference of Spearman x 100, averaged over the seeds, when sentence pairs are drawn again.

    low, high: the 95 % percentile interval of the bootstrap. p_bootstrap: twice the share of resamples on the other
    side of 0. p: of the permutation test.
    """

    pairs: int
    resamples: int
    difference: float
    low: float
    high: float
    p_bootstrap: float
    p: float


def resample(
    gold: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    resamples: int,
    seed: int = 0,
    units: np.ndarray | None = None,
    universe: int = 0,
) -> tuple[float, np.ndarray, np.ndarray]:
    """The observed difference; that on resampled pairs and that after random swaps of the systems, each (resamples,).

    gold: (N,) gold scores; a, b: (S, N) cosines of the same pairs for S seeds. The unit is the pair: a pair is drawn,
    or its systems are swapped, for all seeds at once.

    units: (N,) int64, the number below ``universe`` of the unit that each pair belongs to. A unit is drawn and swapped
    as a whole, and with one ``seed`` in the same way in every set that contains it. By default each pair is a unit.
    """
    if units is None:
        units, universe = np.arange(len(gold)), len(gold)
    rng = np.random.default_rng(seed)
    observed = float(spearman_differences(gold, a, b, np.ones((1, len(gold))))[0])
    blocks = [spearman_differences(gold, a, b, counts[:, units]) for counts in draw_counts(universe, resamples, rng)]
    return observed, np.concatenate(blocks), swapped_differences(gold, a, b, units, universe, resamples, rng)


def resample_units(
    a: np.ndarray, b: np.ndarray, resamples: int, seed: int = 0
) -> tuple[float, np.ndarray, np.ndarray]:
    """As `resample` for a score that is a mean over queries: a, b are its values (S, N) for S seeds and N queries."""
    rng = np.random.default_rng(seed)
    values = (a - b).mean(0)  # (N,)
    drawn = [mean_differences(values, counts) for counts in draw_counts(len(values), resamples, rng)]
    step = max(BLOCK // len(values), 1)
    signs = (rng.integers(2, size=(min(step, resamples - i), len(values))) for i in range(0, resamples, step))
    swapped = [(2 * block - 1) @ values / len(values) for block in signs]
    return float(values.mean()), np.concatenate(drawn), np.concatenate(swapped)


def summarise(pairs: int, observed: float, drawn: np.ndarray, swapped: np.ndarray) -> PairTest:
    """Results of `resample` -> interval and p values. No p value is 0, since the data themselves are one resample."""
    low, high = percentile_interval(drawn)
    side = int(min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0)))
    beyond = int(np.count_nonzero(np.abs(swapped) >= abs(observed) - SAME))
    return PairTest(
        *(pairs, len(drawn), observed, low, high),
        min(1.0, 2 * (side + 1) / (len(drawn) + 1)),
        (beyond + 1) / (len(swapped) + 1),
    )


def swapped_differences(
    gold: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    units: np.ndarray,
    universe: int,
    resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The difference after the systems were swapped on each unit with probability one half: (resamples,).

    Ranks are swapped, not cosines: two systems may spread their cosines differently, but their ranks are spread alike.
    The correlations are computed again from the ranks that each system then has; the sums in them are linear in the
    swaps.
    """
    n, ones = len(gold), np.ones((1, len(gold)))
    centred = standardise(weighted_ranks(gold, ones), ones)[0]
    x, y = (np.stack([standardise(weighted_ranks(row, ones), ones)[0] for row in rows]) for rows in (a, b))  # (S, N)
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
    """p values corrected for their number by Holm's method, in their order; a None stays None and is not counted."""
    tested = sorted((value, i) for i, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, i) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * value))
        corrected[i] = highest
    return corrected
