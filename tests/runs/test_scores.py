"""The keys of scores."""

import pytest

from hf_focalcse.runs.scores import SEVEN, SICK_SPLITS, ScoreKey, averages, headline, headlines, is_headline, set_of

KEYS = {  # text -> task, split, aggregation, metric
    "STS16/test/all/spearman": ("STS16", "test", "all", "spearman"),
    "STS12/test/subset:a/b/spearman": ("STS12", "test", "subset:a/b", "spearman"),
    "STSBenchmark/test/alignment": ("STSBenchmark", "test", "", "alignment"),
    "semeval_cqa_b/dev2016/map_official": ("semeval_cqa_b", "dev2016", "", "map_official"),
    "average/mteb-sickr/all/spearman": ("average", "mteb-sickr", "all", "spearman"),
}


@pytest.mark.parametrize(("text", "parts"), KEYS.items())
def test_a_key_is_read_and_written(text, parts):
    key = ScoreKey.parse(text)
    assert (key.task, key.split, key.aggregation, key.metric) == parts
    assert str(key) == text and key.set == set_of(text) == "/".join(parts[:2])


@pytest.mark.parametrize("text", ["loss", "STS16/test", ""])
def test_text_that_is_no_key(text):
    with pytest.raises(ValueError, match="is not the key of a score"):
        ScoreKey.parse(text)
    assert not is_headline(text)


def test_what_a_key_says_of_itself():
    asked = ("is_headline", "is_average", "is_of_a_subset", "is_ranking")
    said = {text: [name for name in asked if getattr(ScoreKey.parse(text), name)] for text in KEYS}
    assert said == dict(
        zip(KEYS, ([asked[0]], [asked[2]], [], [asked[0], asked[3]], [asked[0], asked[1]]), strict=True)
    )
    gain = ScoreKey.headline("STSBenchmark/dev").gain
    assert gain == "STSBenchmark/dev/all/spearman/gain" and not is_headline(gain)
    assert is_headline("eval_STSBenchmark/dev/all/spearman")
    assert is_headline("mine/held_out/mrr") and not is_headline("mine/held_out/recall@1")
    assert [ScoreKey.parse(f"x/y/{metric}").title for metric in ("mrr", "map_sbert", "other")] == [
        "MRR",
        "MAP",
        "other",
    ]


def test_both_splits_of_sick_r():
    mteb, senteval = SICK_SPLITS.values()
    assert (mteb.label, senteval.label) == ("MTEB (9,927)", "SentEval (4,927)")
    assert list(mteb.test_sets())[:6] == list(senteval.test_sets())[:6] == [f"{name}/test" for name in list(SEVEN)[:6]]
    assert (mteb.set, senteval.set) == ("SICK-R/mteb-test", "SICK-R/senteval-test")
    for split in (mteb, senteval):
        assert ScoreKey.headline(split.set).sick is split is ScoreKey.headline(split.average).sick
    assert ScoreKey.headline("SICK-R/trial").sick is None


def test_the_average_is_of_seven_rounded_scores_on_text_of_one_kind():
    mteb = SICK_SPLITS["mteb"]
    scores = {headline(key): 10.004 + n for n, key in enumerate(mteb.test_sets())}
    data = {key: {"text": "raw"} for key in mteb.test_sets()}
    assert averages(scores, data) == {headline(mteb.average): 13.0}
    assert averages(scores, data | {mteb.set: {"text": "senteval"}}) == {}
    assert averages(scores, {key: of for key, of in data.items() if key != "STS12/test"}) == {}
    assert headlines(scores | {"STS12/test/mean/spearman": 1.0}) == scores
