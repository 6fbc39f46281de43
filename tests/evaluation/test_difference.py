"""The paired bootstrap of two encoders: a loop as its twin, how often it errs, what it says, and what files keep."""

import time

import numpy as np
import pytest
from scipy import stats

from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import PairSet, RerankSet, Results, differences, evaluate_sts
from hf_focalcse.evaluation.difference import Difference
from hf_focalcse.evaluation.pair_sets import Pair
from hf_focalcse.evaluation.rerank import Query
from hf_focalcse.evaluation.statistics import draw_counts
from hf_focalcse.runs.cosines import recall, write_cosines


def results(*, pairs=None, units=None, texts=None, sha256="a", unit="pairs"):
    """Results of one set x/y, as if it had just been measured."""
    scores, found = {}, {}
    if pairs is not None:
        scores["x/y/all/spearman"] = spearman(*pairs)
        found["pairs"] = {"x/y": np.array(pairs, dtype=float)}
    if units is not None:
        scores["x/y/mrr"] = float(np.mean(units))
        found["units"] = {"x/y/mrr": np.array(units, dtype=float)}
    count = len(pairs[0] if pairs is not None else units)
    made = Results.of(scores, {"x/y": {"sha256": sha256, "unit": unit}}, {"weights_sha256": "w"})
    made.pairs, made.units = found.get("pairs", {}), found.get("units", {})
    made.texts = {"x/y": np.arange(count) if texts is None else np.array(texts)}
    return made


def spearman(gold, values):
    return 100 * stats.spearmanr(gold, values).statistic


def drawn_systems(rng, n=150, better=0.0):
    gold = np.round(rng.uniform(0, 5, n), 1)
    return gold, gold + rng.normal(0, 2, n), gold + rng.normal(0, 2 - better, n)


def test_interval_is_that_of_a_loop_in_which_a_repeated_pair_is_one_unit():
    gold, before, after = drawn_systems(np.random.default_rng(0), 40)
    texts = np.array([*range(30), *range(10)])  # ten pairs occur twice
    found = differences(results(pairs=(gold, before), texts=texts), results(pairs=(gold, after), texts=texts), 60)
    (one,) = found.values()
    drawn = []
    for counts in np.concatenate(list(draw_counts(30, 60, np.random.default_rng(0)))):
        copies = [row for row in range(40) for _ in range(int(counts[texts[row]]))]
        drawn.append(spearman(gold[copies], after[copies]) - spearman(gold[copies], before[copies]))
    assert (one.low, one.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-9)
    assert (one.units, one.key, one.unit) == (30, "x/y/all/spearman", "pairs")
    assert one.change == pytest.approx(spearman(gold, after) - spearman(gold, before))


def test_a_mean_over_queries_is_resampled_by_query():
    rng = np.random.default_rng(1)
    before, after = rng.uniform(0, 100, (2, 50))
    found = differences(results(units=before, unit="queries"), results(units=after, unit="queries"), 80)["x/y/mrr"]
    drawn = [
        np.mean((after - before)[np.repeat(np.arange(50), counts.astype(int))])
        for counts in np.concatenate(list(draw_counts(50, 80, np.random.default_rng(0))))
    ]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-9)
    assert (found.units, found.unit) == (50, "queries")


def test_where_there_is_no_difference_one_is_found_in_about_five_of_a_hundred():
    rng, runs = np.random.default_rng(2), 200
    wrong = {"x/y/all/spearman": 0, "x/y/mrr": 0}
    for _ in range(runs):
        gold, before, after = drawn_systems(rng, 60)
        kept = [results(pairs=(gold, row), units=np.exp(rng.normal(0, 1, 60))) for row in (before, after)]
        for key, one in differences(*kept, resamples=200).items():
            wrong[key] += one.verdict != "no difference was found"
    low, high = stats.binom.ppf([0.0005, 0.9995], runs, 0.05)
    assert all(low <= count <= high for count in wrong.values()), (wrong, low, high)


def test_a_difference_that_is_there_is_found_and_told_with_its_direction():
    gold, before, after = drawn_systems(np.random.default_rng(3), 400, better=1.0)
    (up,) = differences(results(pairs=(gold, before)), results(pairs=(gold, after))).values()
    (down,) = differences(results(pairs=(gold, after)), results(pairs=(gold, before))).values()
    assert (up.verdict, down.verdict) == ("raised", "lowered")
    assert up.low > 0 and (down.low, down.high) == pytest.approx((-up.high, -up.low))
    (same,) = differences(results(pairs=(gold, after)), results(pairs=(gold, after))).values()
    assert (same.verdict, same.low, same.high) == ("no difference was found", 0, 0)


def test_the_sentence_of_each_verdict():
    raised = Difference("x/y/mrr", 79.1, 80.2, 0.4, 1.8, 1500, "sentences", "raised")
    assert raised.sentence() == "raised from 79.10 to 80.20 (+1.10, 95 % interval +0.40 to +1.80 over 1,500 sentences)"
    none = Difference("x/y/mrr", 83.25, 83.08, -0.6, 0.3, 265, "pairs", "no difference was found")
    assert none.sentence() == (
        "no difference was found on 265 pairs (83.25 and 83.08; -0.17, 95 % interval -0.60 to +0.30)"
    )


def test_of_few_units_no_difference_is_claimed():
    before = np.arange(19.0)
    (few,) = differences(results(units=before), results(units=before + 1)).values()
    assert few.verdict == "no difference was found" and few.low > 0
    assert "19 pairs, which are too few for a verdict" in few.sentence()
    (enough,) = differences(results(units=[*before, 1]), results(units=[*before + 1, 2])).values()
    assert enough.verdict == "raised"


def test_other_data_under_the_same_key_is_refused_and_a_set_of_one_side_left_out():
    one, other = results(units=np.arange(30)), results(units=np.arange(30), sha256="b")
    with pytest.raises(UserError, match="x/y is not the same set before and after"):
        differences(one, other)
    assert differences(one, results(pairs=np.random.default_rng(0).normal(size=(2, 30)))) == {}


def test_1500_pairs_a_thousand_times_take_about_a_second():
    gold, before, after = drawn_systems(np.random.default_rng(4), 1500)
    began = time.process_time()
    differences(results(pairs=(gold, before)), results(pairs=(gold, after)))
    assert time.process_time() - began < 3  # 0.3 s where nothing else runs


class Numbers:
    """The angle of a text that spells a number is that many degrees."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def encode(self, texts):
        angles = np.radians([float(text) + self.shift * len(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_pairs_and_queries_are_measured_kept_in_a_file_and_read_back(tmp_path):
    rng = np.random.default_rng(5)
    pairs = PairSet("p", "dev", tuple(Pair("", float(i % 5), "0", str(rng.integers(90))) for i in range(30)), "here")
    candidates = rng.integers(0, 90, (25, 4)).astype(str)
    queries = tuple(Query(str(i), tuple(texts), (True, False, False, True)) for i, texts in enumerate(candidates))
    rerank = RerankSet("r", "dev", queries, "here")
    before, after = (
        evaluate_sts(Numbers(shift), [pairs, rerank], progress=False, model={"weights_sha256": str(shift)})
        for shift in (0, 30)
    )
    found = differences(before, after)
    assert list(found) == ["p/dev/all/spearman", "r/dev/map_official", "r/dev/mrr_official"]
    assert (found["r/dev/map_official"].units, found["r/dev/map_official"].unit) == (25, "queries")
    assert {key: values.mean() for key, values in after.units.items()} == pytest.approx(
        {key: after.scores[key] for key in after.units}, abs=1e-6
    )
    read = []
    for name, of in (("before", before), ("after", after)):
        (tmp_path / name).mkdir()
        of.write(tmp_path / name / "results.json")
        write_cosines(tmp_path / name, of)
        read.append(recall(tmp_path / name, Results.read(tmp_path / name / "results.json")))
    assert differences(*read) == found
