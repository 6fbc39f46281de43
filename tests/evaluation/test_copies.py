"""The judge without labels: how sentences are damaged, and what it makes of an encoder."""

import numpy as np
import pytest

from hf_focalcse.errors import UserError
from hf_focalcse.evaluation import differences, evaluate_sts
from hf_focalcse.evaluation.copies import judge_by_copies

LINES = [f"number {i} of the {i * i} sentences has word{i} and w{i + 7} in it" for i in range(30)]


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
