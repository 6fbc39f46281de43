"""Paired tests against scipy and loops, and how often they find a difference where there is none."""

import math

import numpy as np
import pytest
from scipy import stats

from hf_focalcse.evaluation.statistics import draw_counts, spearman_differences, weighted_ranks
from hf_focalcse.experiments.statistics import compare_seeds, holm, resample, summarise, swapped_differences

NULL = 200
BAND = stats.binom.ppf([0.0005, 0.9995], NULL, 0.05)  # 2 to 22 of 200


def systems(rng, n=120, seeds=1, better=0.0):
    """Gold scores with ties, and the cosines of two systems that know as much of them but for ``better``."""
    gold = np.round(rng.uniform(0, 5, n), 1)
    a = gold + rng.normal(0, 2 - better, (seeds, n))
    return gold, np.round(a, 1) / 10, np.exp((gold + rng.normal(0, 2, (seeds, n))) / 5)  # other scale, some ties


def compare_pairs(gold, a, b, resamples, seed=0):
    return summarise(len(gold), *resample(gold, a, b, resamples, seed))


def spearman(gold, row):
    return 100 * stats.spearmanr(gold, row).statistic


# ---- over seeds


def test_t_test_is_scipys_and_the_effect_size_the_textbooks():
    a, b = [79.1, 78.2, 80.4, 77.9], [78.0, 78.1, 78.6, 77.2]
    found, theirs = compare_seeds(a, b), stats.ttest_rel(a, b)
    assert (found.t, found.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-12)
    difference = np.subtract(a, b)
    # by hand, with the quantile of Student's t for 3 degrees of freedom from a printed table
    mean, error = difference.mean(), difference.std(ddof=1) / math.sqrt(4)
    assert (found.n, found.mean, found.t) == pytest.approx((4, mean, mean / error))
    assert (found.low, found.high) == pytest.approx((mean - 3.18245 * error, mean + 3.18245 * error), rel=1e-5)
    assert found.p == pytest.approx(2 * stats.t.sf(mean / error, 3), rel=1e-12)
    assert found.d == pytest.approx(difference.mean() / difference.std(ddof=1))
    exact = math.gamma(1.5) / math.sqrt(1.5) / math.gamma(1.0)  # Hedges 1981 for 3 degrees of freedom
    assert found.g == pytest.approx(found.d * exact) and exact == pytest.approx(0.7236, abs=1e-4)


def test_no_test_where_there_can_be_none():
    assert compare_seeds([80.0], [79.0]).p is None and compare_seeds([80.0], [79.0]).mean == 1.0
    assert compare_seeds([80.0, 81.0], [79.0, 80.0]).p is None  # no spread: t would be infinite
    two = compare_seeds([80.0, 81.0], [79.0, 79.0])
    assert two.p == pytest.approx(stats.ttest_rel([80.0, 81.0], [79.0, 79.0]).pvalue) and two.g is None


def test_holm_is_the_step_down_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([None, 0.02, None, 0.03]) == [None, 0.04, None, 0.04]


# ---- over pairs


def test_ranks_of_a_resample_are_those_of_its_copies():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 6, 15).astype(float)
    for weights in draw_counts(15, 20, rng):
        for row, ranks in zip(weights, weighted_ranks(values, weights), strict=True):
            copies = np.repeat(np.arange(15), row.astype(int))
            expected = stats.rankdata(values[copies])
            assert row.sum() == 15 and np.array_equal(ranks[copies], expected)


def test_bootstrap_is_a_loop_over_resampled_pairs():
    gold, a, b = systems(np.random.default_rng(1), seeds=3)
    _, drawn, _ = resample(gold, a, b, 50, seed=7)
    rows = np.concatenate(list(draw_counts(len(gold), 50, np.random.default_rng(7))))
    for found, row in zip(drawn, rows, strict=True):
        copies = np.repeat(np.arange(len(gold)), row.astype(int))
        each = [
            spearman(gold[copies], x[copies]) - spearman(gold[copies], y[copies]) for x, y in zip(a, b, strict=True)
        ]
        assert found == pytest.approx(np.mean(each), abs=1e-9)


def test_bootstrap_interval_is_near_scipys():
    gold, a, b = systems(np.random.default_rng(2), n=200, better=0.5)

    def statistic(g, x, y):
        return spearman(g, x) - spearman(g, y)

    theirs = stats.bootstrap(
        *((gold, a[0], b[0]), statistic), paired=True, vectorized=False, n_resamples=2000, method="percentile",
        rng=np.random.default_rng(3),
    )  # fmt: skip
    found = compare_pairs(gold, a, b, 2000)
    assert found.difference == pytest.approx(statistic(gold, a[0], b[0]), abs=1e-9)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.06 * width)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.06 * width)


def ranks(rows):
    """Of each row, of mean 0 and length 1."""
    found = np.array([stats.rankdata(row) - (len(row) + 1) / 2 for row in rows])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def pearson(x, y):
    return 100 * np.corrcoef(x, y)[0, 1]


def test_permutation_is_scipys_over_all_swaps():
    """Eleven pairs have 2048 ways to swap the ranks of two systems: scipy counts them all, we draw some."""
    gold, a, b = systems(np.random.default_rng(4), n=11, better=1.5)
    g, x, y = (stats.rankdata(row) for row in (gold, a[0], b[0]))
    x, y = ((row - 6) / np.linalg.norm(row - 6) for row in (x, y))  # with ties their spread differs a little
    theirs = stats.permutation_test(
        (x, y), lambda x, y: pearson(g, x) - pearson(g, y), permutation_type="samples", vectorized=False,
        n_resamples=np.inf,
    )  # fmt: skip
    assert theirs.statistic == pytest.approx(spearman_differences(gold, a, b, np.ones((1, 11)))[0])
    everything = theirs.null_distribution
    exact = np.mean(np.abs(everything) >= abs(theirs.statistic) * (1 - 1e-12))
    found = compare_pairs(gold, a, b, 20_000).p
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000) + 1 / 20_000)
    drawn = swapped_differences(gold, a, b, np.arange(11), 11, 5000, np.random.default_rng(5))
    assert len(everything) == 2048 and set(np.round(drawn, 8)) <= set(np.round(everything, 8))


def test_a_unit_is_drawn_and_swapped_as_one():
    """Pairs 0 and 1 have one text, as have 2 and 5; the universe has two units that this set lacks."""
    gold, a, b = systems(np.random.default_rng(8), n=30, seeds=2)
    units = np.arange(30)
    units[[1, 5]] = 0, 2
    observed, drawn, swapped = resample(gold, a, b, 40, seed=3, units=units, universe=32)
    rng = np.random.default_rng(3)
    counts = np.concatenate(list(draw_counts(32, 40, rng)))
    swaps = rng.integers(2, size=(40, 32), dtype=np.int8)
    for found, moved, row, swap in zip(drawn, swapped, counts, swaps, strict=True):
        copies = np.repeat(np.arange(30), row[units].astype(int))
        each = [
            spearman(gold[copies], x[copies]) - spearman(gold[copies], y[copies]) for x, y in zip(a, b, strict=True)
        ]
        assert found == pytest.approx(np.mean(each), abs=1e-9)
        each = []
        for x, y in zip(ranks(a), ranks(b), strict=True):
            chosen = swap[units].astype(bool)
            each.append(
                pearson(ranks([gold])[0], np.where(chosen, y, x)) - pearson(ranks([gold])[0], np.where(chosen, x, y))
            )
        assert moved == pytest.approx(np.mean(each), abs=1e-9)
    assert swapped.std() > 0
    assert observed == pytest.approx(
        np.mean([spearman(gold, x) - spearman(gold, y) for x, y in zip(a, b, strict=True)])
    )


def test_two_sets_with_the_same_pairs_are_no_more_certain_than_one():
    """Drawn apart, the mean of a set and itself would look steadier by a factor of 1.4."""
    gold, a, b = systems(np.random.default_rng(9), n=200, better=0.4)
    once = resample(gold, a, b, 2000, 0, np.arange(200), 200)
    order = np.random.default_rng(1).permutation(200)
    again = resample(gold[order], a[:, order], b[:, order], 2000, 0, order, 200)
    both = summarise(200, *((x + y) / 2 for x, y in zip(once, again, strict=True)))
    one = summarise(200, *once)
    assert (both.low, both.high, both.p) == pytest.approx((one.low, one.high, one.p), abs=1e-9)
    apart = summarise(200, *((x + y) / 2 for x, y in zip(once, resample(gold, a, b, 2000, 1), strict=True)))
    assert 1.2 < (one.high - one.low) / (apart.high - apart.low) < 1.6


def test_a_small_set_may_be_missing_from_a_resample():
    gold, a, b = np.array([1.0, 2.0]), np.array([[0.1, 0.2]]), np.array([[0.2, 0.1]])
    observed, drawn, _ = resample(gold, a, b, 200, 0, np.array([7, 9]), 40)
    assert observed == pytest.approx(200) and np.isfinite(drawn).all() and (drawn == 0).any()


def test_a_difference_that_is_there_is_found():
    gold, a, b = systems(np.random.default_rng(6), n=400, seeds=2, better=1.0)
    found = compare_pairs(gold, a, b, 1000)
    assert 0 < found.low < found.difference < found.high and found.p == found.p_bootstrap / 2 == 1 / 1001
    other = compare_pairs(gold, b, a, 1000)
    assert (other.difference, other.low, other.high) == pytest.approx((-found.difference, -found.high, -found.low))


# ---- 200 comparisons of equals: near 5 % are called different


def test_false_positives_over_seeds():
    rng = np.random.default_rng(10)
    p = [compare_seeds(*(75 + rng.normal(0, 0.8, (2, 4)))).p for _ in range(NULL)]
    assert BAND[0] <= np.count_nonzero(np.array(p) < 0.05) <= BAND[1]


def test_false_positives_over_pairs():
    rng = np.random.default_rng(11)
    found = [compare_pairs(*systems(rng, seeds=2), resamples=400, seed=i) for i in range(NULL)]
    for name in ("p", "p_bootstrap"):
        assert BAND[0] <= sum(getattr(test, name) < 0.05 for test in found) <= BAND[1], name
    outside = sum(not test.low <= 0 <= test.high for test in found)
    assert BAND[0] <= outside <= BAND[1]


def test_false_positives_of_seven_sets_together():
    """Uncorrected, a third of all null comparisons call some set different; Holm holds that near 5 %."""
    rng = np.random.default_rng(12)
    raw, corrected = 0, 0
    for _ in range(NULL):
        p = [compare_seeds(*(75 + rng.normal(0, 0.8, (2, 4)))).p for _ in range(7)]
        raw, corrected = raw + (min(p) < 0.05), corrected + (min(holm(p)) < 0.05)
    assert corrected <= BAND[1] < 40 < raw


def test_equal_rankings_are_no_finding():
    """Cosines that rank alike differ by rounding alone, which no permutation may call larger than chance."""
    rng = np.random.default_rng(3)
    gold, a = rng.random(200), rng.random((2, 200))
    found = compare_pairs(gold, a, a * 0.5 + 3, 500)
    assert abs(found.difference) < 1e-12 and found.p == 1.0
