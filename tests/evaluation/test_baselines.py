"""Baselines without training: whitening against an SVD written anew, word vectors on literal files, the table."""

import gzip
import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from hf_focalcse.cli.main import main
from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import Results, evaluate_sts, load_tasks
from hf_focalcse.evaluation.table import make_table, read_system
from hf_focalcse.evaluation.whitening import Remembering, WhitenedEncoder, Whitening
from hf_focalcse.evaluation.word_vectors import WordVectors, tokens
from hf_focalcse.runs.scores import FORMAT, PROTOCOL


def whitened_by_svd(fit: np.ndarray, vectors: np.ndarray, k: int) -> np.ndarray:
    """Su et al. 2021, with a loop for the covariance and NumPy's SVD of it."""
    mean = sum(fit) / len(fit)
    covariance = np.zeros((fit.shape[1], fit.shape[1]))
    for x in fit:
        covariance += np.outer(x - mean, x - mean)
    u, s, _ = np.linalg.svd(covariance / (len(fit) - 1))
    return (vectors - mean) @ (u @ np.diag(1 / np.sqrt(s)))[:, :k]


def anisotropic(rows=60, size=8, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, size)) @ rng.normal(size=(size, size)) + 10 * rng.normal(size=size)


@pytest.mark.parametrize("k", [8, 3, 1])
def test_whitening_equals_the_svd(k):
    fit, other = anisotropic(), anisotropic(7, seed=1)
    ours, theirs = Whitening(fit, k)(other), whitened_by_svd(fit, other, k)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-8)  # a direction's sign is free
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-8)  # and no cosine sees it


def test_whitened_vectors_have_mean_0_and_covariance_1():
    fit = anisotropic()
    white = Whitening(fit.astype(np.float32))(fit)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(np.cov(white.T), np.eye(8), atol=1e-4)
    assert Whitening(fit)(fit).shape == (60, 8) and Whitening(fit, 2)(fit).shape == (60, 2)


def test_whitening_refuses_more_dimensions_than_there_are():
    with pytest.raises(UserError, match="--whiten_dim is 9; this encoder's vectors have 8 numbers"):
        Whitening(anisotropic(), 9)
    with pytest.raises(UserError, match="--whiten_dim is 0"):
        Whitening(anisotropic(), 0)
    with pytest.raises(UserError, match="--whiten_dim is 8, but the 5 vectors .* span 4 dimensions"):
        Whitening(anisotropic(rows=5), 8)
    with pytest.raises(UserError, match="span 0 dimensions"):
        Whitening(np.ones((5, 8)), 1)


def test_whitening_keeps_what_the_vectors_span_unless_told_otherwise():
    """Vectors in a plane: across it there is rounding alone, which must not be blown up to variance 1."""
    flat = anisotropic()
    flat[:, 7] = -flat[:, :7].sum(1)
    for dtype, near in ((np.float64, 1e-8), (np.float32, 1e-4)):
        vectors = flat.astype(dtype)
        assert Whitening(vectors)(flat).shape == (60, 7)
        np.testing.assert_allclose(np.cov(Whitening(vectors)(vectors).T), np.eye(7), atol=near)
    assert Whitening(anisotropic(rows=5))(flat).shape == (60, 4)


def test_each_text_is_encoded_once():
    seen = []

    class Counting:
        def encode(self, texts):
            seen.extend(texts)
            return np.array([[len(text), 1.0] for text in texts])

    encoder = Remembering(Counting())
    assert encoder.encode(["a", "bb", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert encoder.encode(["bb", "ccc"]).tolist() == [[2, 1], [3, 1]]
    assert seen == ["a", "bb", "ccc"]


@pytest.mark.slow
def test_whitening_of_the_quickstart_encoder_equals_an_independent_computation(shared_data):
    """STS-B test with its own texts, before and after."""
    from hf_focalcse.encoder.loading import load_model
    from hf_focalcse.quickstart import encoder_path

    encoder = Remembering(load_model(str(encoder_path())))
    (task,) = load_tasks(["STSBenchmark"], str(shared_data / "sts"))
    texts = [text for pair in task.pairs for text in (pair.sentence1, pair.sentence2)]
    vectors = encoder.encode(texts)
    white = whitened_by_svd(vectors.astype(np.float64), vectors, 256)
    white /= np.linalg.norm(white, axis=1, keepdims=True)
    expected = 100 * spearmanr((white[0::2] * white[1::2]).sum(1), [pair.score for pair in task.pairs]).statistic
    plain = evaluate_sts(encoder, [task], progress=False).scores["STSBenchmark/test/all/spearman"]
    ours = evaluate_sts(WhitenedEncoder(encoder, Whitening(vectors, 256)), [task], progress=False)
    after = ours.scores["STSBenchmark/test/all/spearman"]
    print(f"STS-B test: before {plain:.4f}, whitened {after:.4f}, by SVD {expected:.4f}")
    assert after == pytest.approx(expected, abs=1e-3) and abs(after - plain) > 0.1


# ---- word vectors

GLOVE = "the 1 0 0\ncat 0 2 0\nsleeps 0 0 3\nCat 9 9 9\n. . . 5 5 5\n. 1 1 1\ncat 7 7 7\n"


def test_word_vectors_are_averaged_over_the_known_words(tmp_path):
    assert tokens("The cat's nap, 2nd!") == ["The", "cat", "'", "s", "nap", ",", "2nd", "!"]
    texts = ["the cat sleeps", "The CAT the", "Cat.", "unseen words"]
    (tmp_path / "glove.txt").write_text(GLOVE)
    (tmp_path / "w2v.vec").write_text("7 3 \n".rstrip() + "\n" + GLOVE.replace("\n", " \n"))
    with gzip.open(tmp_path / "glove.txt.gz", "wt") as file:
        file.write(GLOVE)
    expected = [[1 / 3, 2 / 3, 1], [2 / 3, 2 / 3, 0], [5, 5, 5]]  # The -> the; CAT -> cat, the first; Cat as written
    for name in ("glove.txt", "w2v.vec", "glove.txt.gz"):
        words = WordVectors(tmp_path / name, texts)
        np.testing.assert_allclose(words.encode(texts)[:3], expected)
        assert set(words.vectors) == {"the", "cat", "sleeps", "Cat", "."}  # only what the texts ask for
        np.testing.assert_allclose(words.encode(texts)[3], np.mean(list(words.vectors.values()), axis=0))
        assert words.unknown == {"unseen words"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the 1 0 0\ncat 1 0\n", "line 2: expected a word and 3 numbers"),
        (b"the\n", "line 1: expected a word and 2 numbers"),
        (b"the 1 x 0\n", "line 1: the vector of 'the' contains something other than finite"),
        (b"dog 1 0 0\n", "has none of the 1 words of the sentences; give"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (None, "no such file"),
    ],
)
def test_word_vectors_refuse_with_the_remedy(tmp_path, content, message):
    if content is not None:
        (tmp_path / "v.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        WordVectors(tmp_path / "v.txt", ["the"])


# ---- the table

SETS = [*(f"STS{year}/test" for year in range(12, 17)), "STSBenchmark/test"]


def results(name, first, sick=("senteval", "mteb"), sha="a", **model):
    """Scores first, first+1, … in the order of the table."""
    keys = [*SETS, *(f"SICK-R/{s}-test" for s in sick)]
    scores = {f"{key}/all/spearman": first + i for i, key in enumerate(keys)}
    scores |= {f"average/{s}-sickr/all/spearman": first + 3 for s in sick}
    data = {key: {"sha256": sha, "pairs": 10, "text": "raw"} for key in keys}
    model = {"name_or_path": name, "pooler": "mean", "projection": "none"} | model
    return Results(scores, {"format": FORMAT, "protocol": PROTOCOL, "model": model, "data": data})


def test_table_of_five_runs(tmp_path):
    runs = [
        results("some/bert", 10.0),
        results("some/bert", 20.0, pooler="cls", projection="training"),
        results("some/bert", 30.0, whitening="target, 256 dimensions", precision="bfloat16"),
        results("mteb-only", 40.0, sick=("mteb",)),
        results("dev-only", 50.0),
    ]
    runs[4].scores = {"STSBenchmark/dev/all/spearman": 77.777}
    runs[4].metadata["data"] = {}
    arguments = []
    for i, run in enumerate(runs):
        (tmp_path / str(i)).mkdir()
        run.write(tmp_path / str(i) / "results.json")
        arguments.append(str(tmp_path / str(i) / ("results.json" if i % 2 else "")))
    arguments[0] = f"Base={arguments[0]}"
    table = make_table([read_system(argument) for argument in arguments])
    assert table.header == ["System", "STS12", "STS13", "STS14", "STS15", "STS16", "STS-B",
                            "SICK-R SentEval (4,927)", "Avg", "STSBenchmark/dev"]  # fmt: skip
    assert [row[0] for row in table.rows] == [
        "Base", "bert (cls_before_pooler)", "bert (mean, whitened on target, 256 dimensions, bfloat16)",
        "mteb-only (mean)", "dev-only (mean)",
    ]  # fmt: skip
    assert table.rows[0][1:] == ["10.00", "11.00", "12.00", "13.00", "14.00", "15.00", "16.00", "13.00", "-"]
    assert table.rows[3][7:] == ["-", "-", "-"]  # MTEB's SICK-R is not SentEval's
    assert table.rows[4][1:] == ["-"] * 8 + ["77.78"]
    assert "SICK-R: mteb-only (mean) has only MTEB (9,927), which does not compare." in table.notes
    mteb = make_table([read_system(argument) for argument in arguments], "mteb")
    assert mteb.header[7] == "SICK-R MTEB (9,927)" and mteb.rows[3][7:9] == ["46.00", "43.00"]
    plain = table.plain().splitlines()
    assert len({len(line) for line in plain[:7]}) == 1 and plain[2].startswith("Base ")
    markdown = table.markdown().splitlines()
    assert markdown[1].count("--:") == 9 and markdown[2].startswith("| Base | 10.00 |")


def test_table_says_what_does_not_compare():
    table = make_table([("one", results("x", 1.0)), ("two", results("y", 2.0, sha="b"))])
    assert any(note.startswith("STS12: measured on different data") and "one (10 pairs, text raw)" in note
               for note in table.notes)  # fmt: skip
    assert not [note for note in make_table([("one", results("x", 1.0))]).notes if "different" in note]


def test_table_leaves_out_folders_without_results(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("run", "report"):
        (tmp_path / name).mkdir()
    results("x", 1.0).write(tmp_path / "run/results.json")
    main(["table", "report", "run", "--format", "plain"])
    out, err = capsys.readouterr()
    assert out.count("x (mean)") == 1 and err == "note: left out because they hold no scores: report\n"
    for arguments in (["report"], ["report", "report/"], ["run", "mine=report"], ["run", "nowhere"]):
        with pytest.raises(SystemExit):
            main(["table", *arguments])
        assert "no such file: " in capsys.readouterr().err


def test_table_refuses(tmp_path):
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UserError, match="is not a results.json"):
        read_system(str(tmp_path / "bad.json"))
    with pytest.raises(UserError, match="no such file"):
        read_system(f"name={tmp_path / 'nowhere.json'}")
    details = {"format": FORMAT, "protocol": PROTOCOL, "model": {}, "data": {}}
    (tmp_path / "a=b.json").write_text(json.dumps({"metadata": details}))
    assert read_system(str(tmp_path / "a=b.json"))[1].scores == {}  # a path with = in it
    with pytest.raises(UserError, match="no result holds a Spearman"):
        make_table([("x", Results({}, {"model": {}, "data": {}, "protocol": PROTOCOL}))])
    with pytest.raises(UserError, match="--sick is 'x'"):
        make_table([("x", results("x", 1.0))], "x")
