"""Each text finds its own: ranks against a loop, ties and collapse, and the place among other tasks."""

import numpy as np
import pytest

from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import MatchSet, Results, differences, evaluate_sts, matching
from hf_focalcse.evaluation.matching import own_ranks
from hf_focalcse.evaluation.metrics import cosine


class Drawn:
    """A vector for each text, drawn once; those of equal last letters are near each other."""

    def __init__(self, noise=1.0):
        self.noise = noise

    def encode(self, texts):
        near = {letter: np.random.default_rng(ord(letter)).normal(size=8) for letter in {text[-1] for text in texts}}
        return np.stack(
            [near[t[-1]] + self.noise * np.random.default_rng(list(t.encode())).normal(size=8) for t in texts]
        ).astype(np.float32)


LETTERS = [chr(code) for code in range(97, 97 + 26)]
SET = MatchSet("mine", "copies", tuple(f"q {x}" for x in LETTERS), tuple(f"c {x}" for x in LETTERS), "here")


def test_ranks_are_those_of_a_loop_in_blocks_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    queries, candidates = rng.normal(size=(2, 40, 6))
    cosines = [[cosine(query[None], candidate[None])[0] for candidate in candidates] for query in queries]
    slow = [sum(other >= row[i] - 1e-12 for other in row) for i, row in enumerate(cosines)]
    assert own_ranks("x", queries, candidates).tolist() == slow and len(set(slow)) > 5
    monkeypatch.setattr(matching, "BLOCK", 7)
    assert own_ranks("x", queries, candidates).tolist() == slow


def test_what_is_as_near_stands_before_the_own_one_and_a_collapsed_encoder_is_refused():
    queries = np.array([[1.0, 0], [0, 1]])
    assert own_ranks("x", queries, np.array([[1.0, 0], [1.0, 0]])).tolist() == [2, 2]
    with pytest.raises(UserError, match="cosines of x equal 1.0"):
        own_ranks("x", np.ones((3, 2)), np.ones((3, 2)))


def test_scores_are_means_over_sentences_and_differences_find_them():
    noisy, clear = (evaluate_sts(Drawn(noise), [SET], progress=False) for noise in (2.0, 0.5))
    ranks = own_ranks("x", Drawn(2.0).encode(list(SET.queries)), Drawn(2.0).encode(list(SET.candidates)))
    assert noisy.scores == pytest.approx(
        {"mine/copies/mrr": 100 * np.mean(1 / ranks), "mine/copies/recall@1": 100 * np.mean(ranks == 1)}, abs=1e-6
    )
    found = differences(noisy, clear)
    assert [(key, of.verdict, of.unit, of.units) for key, of in found.items()] == [
        ("mine/copies/mrr", "raised", "sentences", 26),
        ("mine/copies/recall@1", "raised", "sentences", 26),
    ]


def test_it_is_known_by_its_mrr_and_its_data_by_a_hash(tmp_path):
    results = evaluate_sts(Drawn(), [SET], progress=False)
    results.write(tmp_path / "results.json")
    read = Results.read(tmp_path / "results.json")
    assert SET.headline == "mine/copies/mrr" in read.scores
    data = read.metadata["data"]["mine/copies"]
    assert (data["unit"], data["pairs"], data["source"]) == ("sentences", 26, "here")
    other = MatchSet("mine", "copies", SET.queries, (*SET.candidates[:-1], "another z"), "here")
    assert other.describe()["sha256"] != data["sha256"]
    assert (other.fingerprints() != SET.fingerprints()).tolist() == [False] * 25 + [True]
    asked = MatchSet("mine", "copies", (*SET.queries[:-1], "another z"), SET.candidates, "here")
    assert len({of.describe()["sha256"] for of in (SET, other, asked)}) == 3
    assert (asked.fingerprints() != SET.fingerprints()).tolist() == [False] * 25 + [True]


@pytest.mark.parametrize(
    "queries, candidates, message",
    [
        (("a",), ("b",), "here: 1 sentences and 1 candidates of mine/copies: there must be as many of each"),
        (("a", "b"), ("c",), "2 sentences and 1 candidates"),
        (("a", "b"), ("c", "c"), "'c' is the candidate of several sentences"),
    ],
)
def test_what_cannot_be_judged_is_refused(queries, candidates, message):
    with pytest.raises(UserError, match=message):
        MatchSet("mine", "copies", queries, candidates, "here")
