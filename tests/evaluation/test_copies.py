"""The judge without labels: how sentences are damaged, and what it makes of an encoder."""

import numpy as np
import pytest

from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import copies, differences, evaluate_sts, read_pairs, read_tasks
from hf_focalcse.evaluation.copies import judge_by_copies

LINES = [f"number {i} of the {i * i} sentences has word{i} and w{i + 7} in it" for i in range(30)]


COPY = "the over the lazy"  # what is drawn of one sentence
PARTS = ("the over the lazy today", "quick brown fox jumps dog")


class Bag:
    """Each word has a vector, a sentence the sum; ``noise`` of it is drawn for the text as a whole."""

    def __init__(self, noise=0.0):
        self.noise = noise

    def encode(self, texts):
        return np.stack([self.of(text) for text in texts])

    def of(self, text):
        words = [np.random.default_rng(list(word.encode())).normal(size=16) for word in text.split()]
        return np.sum(words, axis=0) + self.noise * np.random.default_rng(list(text.encode())).normal(size=16)


def written(folder, lines, name="mine.txt"):
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / name


def test_a_copy_keeps_40_per_cent_of_the_words_in_order_and_parts_share_none(tmp_path):
    made = judge_by_copies(written(tmp_path, LINES))
    assert made.copies.candidates == tuple(LINES) and made.key == "mine/copies"
    for copy, line in zip(made.copies.queries, LINES, strict=True):
        words = line.split()
        left = iter(words)
        assert len(copy.split()) == round(0.4 * len(words)) and all(word in left for word in copy.split())
    for one, other, line in zip(made.parts.queries, made.parts.candidates, LINES, strict=True):
        assert sorted([*one.split(), *other.split()]) == sorted(line.split())


def test_a_sentence_is_damaged_alike_in_every_file_and_short_or_repeated_ones_are_left_out(tmp_path):
    made = judge_by_copies(written(tmp_path, LINES))
    other = judge_by_copies(
        written(tmp_path, ["too short", LINES[3], *LINES[::-1], "A B c d e", "a b, C d e!"], "o.txt")
    )
    whole = dict(zip(made.copies.candidates, made.copies.queries, strict=True))
    found = dict(zip(other.copies.candidates, other.copies.queries, strict=True))
    assert found == {line: whole[line] for line in LINES if line != LINES[3]}
    short = judge_by_copies(written(tmp_path, ["this one has five words", *LINES], "two.parts.txt"))
    assert short.copies.candidates == ("this one has five words", *LINES) and short.key == "two/copies"
    with pytest.raises(UserError, match="has 1 different sentences of at least 5 words"):
        judge_by_copies(written(tmp_path, LINES[:1], "one.txt"))


def test_it_is_the_mean_of_both_ranks_of_each_sentence_and_sees_a_worse_encoder(tmp_path):
    judge = judge_by_copies(written(tmp_path, LINES))
    good, bad = (evaluate_sts(Bag(noise), [judge], progress=False) for noise in (0.0, 8.0))
    for found in (good.scores, bad.scores):
        both = found["mine/copies/copies_mrr"], found["mine/copies/parts_mrr"]
        assert found["mine/copies/mrr"] == pytest.approx(np.mean(both), abs=1e-5) and judge.headline in found
    alone = evaluate_sts(Bag(), [judge.parts], progress=False)
    assert alone.scores["mine/parts/mrr"] == good.scores["mine/copies/parts_mrr"]
    one = differences(good, bad)["mine/copies/mrr"]
    assert (one.verdict, one.unit, one.units) == ("lowered", "sentences", 30)
    assert (one.before, one.after) == (good.scores[judge.headline], bad.scores[judge.headline])


def test_scores_stay_comparable_between_versions():
    """The draw is part of what a score means: another one would need another name for the set."""
    line = "the quick brown fox jumps over the lazy dog today"
    assert copies.COPIES.make(line.split()) == (COPY.split(), line.split())
    assert copies.PARTS.make(line.split()) == tuple(part.split() for part in PARTS)


def test_sentences_whose_damaged_candidate_is_the_same_are_left_out(tmp_path, monkeypatch):
    """Neither of two equal candidates could be found."""
    monkeypatch.setattr(copies, "PARTS", copies.PARTS._replace(make=lambda words: (words[:-3], words[-3:])))
    lines = [f"sentence {i} has the same end" for i in range(3)] + LINES
    assert judge_by_copies(written(tmp_path, lines)).copies.candidates == tuple(LINES)
    monkeypatch.setattr(copies, "PARTS", copies.PARTS._replace(make=lambda words: (words[-3:], words[:-3])))
    assert len(judge_by_copies(written(tmp_path, lines)).copies.candidates) == len(lines)  # equal queries may stand


def test_of_a_long_file_the_same_sentences_are_kept_in_any_order(tmp_path, monkeypatch):
    whole = judge_by_copies(written(tmp_path, LINES))
    assert whole.describe()["rule"].endswith(copies.PARTS.rule)
    monkeypatch.setattr(copies, "MOST", 10)
    some, turned = (judge_by_copies(written(tmp_path, lines)) for lines in (LINES, LINES[::-1]))
    assert len(some.copies.candidates) == 10 and set(some.copies.candidates) == set(turned.copies.candidates)
    assert some.copies.candidates == tuple(line for line in LINES if line in some.copies.candidates)
    assert some.describe()["rule"].endswith(", of 10 of 30 sentences")


def test_the_set_is_described_by_both_of_its_parts(tmp_path, monkeypatch):
    made = judge_by_copies(written(tmp_path, LINES))
    said = made.describe()
    assert (said["unit"], said["pairs"], said["source"]) == ("sentences", 30, str(tmp_path / "mine.txt"))
    assert copies.COPIES.rule in said["rule"] and copies.PARTS.rule in said["rule"]
    for name in ("COPIES", "PARTS"):  # another damage is another set
        changed = getattr(copies, name)._replace(make=lambda words: (words[:2], words))
        with monkeypatch.context() as patch:
            patch.setattr(copies, name, changed)
            assert judge_by_copies(written(tmp_path, LINES)).describe()["sha256"] != said["sha256"]
    assert len(set(made.fingerprints())) == 30
    found = evaluate_sts(Bag(2.0), [made], progress=False)
    ranks = [evaluate_sts(Bag(2.0), [of], progress=False).scores[f"mine/{of.split}/recall@1"]
             for of in (made.copies, made.parts)]  # fmt: skip
    assert found.scores["mine/copies/recall@1"] == pytest.approx(np.mean(ranks), abs=1e-5) and ranks[0] != ranks[1]


def test_an_eval_file_may_be_text_a_folder_or_a_pattern(tmp_path):
    folder = tmp_path / "dev"
    folder.mkdir()
    written(folder, LINES, "a.txt"), written(folder, LINES, "b.md")
    rows = [["question1", "question2", "is_duplicate"], ["a", "b", "1"], ["c", "d", "0"]]
    written(folder, ["\t".join(row) for row in rows], "c.tsv")
    assert [task.key for task in read_tasks("quickstart")] == ["quickstart/copies", "quickstart_pairs/file"]
    assert [task.key for task in read_tasks(folder)] == ["a/copies", "b/copies", "c/file"]
    assert [task.key for task in read_tasks(f"{folder}/*.t*")] == ["a/copies", "c/file"]
    assert [task.key for task in read_tasks(folder / "b.md")] == ["b/copies"]
    assert read_pairs(folder / "c.tsv").pairs[0] == ("", 1.0, "a", "b")
    written(
        folder, ["\t".join(["score", *rows[0]]), "0.5\ta\tb\t1", "0.7\tc\td\t0"], "c.tsv"
    )  # the usual name comes first
    assert read_pairs(folder / "c.tsv").pairs[0] == ("", 0.5, "a", "b")
    written(folder, LINES, "a.md")
    with pytest.raises(UserError, match="a.md and .*a.txt would both be scored as a/copies; rename one of the files"):
        read_tasks(folder)
    with pytest.raises(UserError, match="no such file: .*none.txt; check the path: --eval_file is a file"):
        read_tasks(tmp_path / "none.txt")
    written(tmp_path, ["x"], "odd.xyz")
    with pytest.raises(UserError, match="must end in .csv"):
        read_tasks(tmp_path / "odd.xyz")
