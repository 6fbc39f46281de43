"""Tables of pairs: which columns are taken, what is counted, and what is refused."""

import json

import numpy as np
import pytest
from tiny import SENTENCES, tiny_tokenizer

from hf_focalcse.data.pairs import chosen_columns, header_of, pairs_of, read_pairs, usual_columns
from hf_focalcse.data.sentences import read_sentences
from hf_focalcse.data.views import View, Views
from hf_focalcse.errors import UserError

THREE = ("sent0", "sent1", "hard_neg")
ROWS = [(a, b, c) for a, b, c in zip(SENTENCES, SENTENCES[1:], SENTENCES[2:], strict=False)]


def write(path, rows=ROWS, columns=THREE):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    else:
        cut = "\t" if path.suffix == ".tsv" else ","
        path.write_text("".join(cut.join(row) + "\n" for row in [columns, *rows]))
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_reads_the_same_of_every_format(tmp_path, ending):
    path = write(tmp_path / f"pairs.{ending}")
    assert header_of(path) == list(THREE)
    pairs = read_pairs(path, THREE, tokenizer=tiny_tokenizer(), max_seq_length=6)
    assert len(pairs) == len(ROWS) and pairs[2] == dict(zip(THREE, ROWS[2], strict=True))
    report = pairs.report
    assert (report.kept, report.blank, report.duplicates, report.columns) == (len(ROWS), 0, 0, THREE)
    memory = pairs_of([dict(zip(THREE, row, strict=True)) for row in ROWS], THREE, "memory")
    assert report.sha256 == memory.report.sha256 and 0 < report.truncated_share < 1
    assert "column 'sent0, sent1, hard_neg'" in str(report)


def test_empty_cells_repeats_and_subsets(tmp_path):
    rows = [*ROWS, ("a", "", "b"), ("a", "b", " "), ROWS[0]]
    path = write(tmp_path / "pairs.csv", rows)
    report = read_pairs(path, THREE).report
    assert (report.lines_read, report.kept, report.blank, report.duplicates) == (len(rows), len(ROWS) + 1, 2, 1)
    report = read_pairs(path, THREE, drop_duplicates=True).report
    assert (report.kept, report.blank, report.dropped) == (len(ROWS), 2, 1)
    some = read_pairs(path, THREE, max_samples=3, seed=1)
    assert len(some) == 3 == some.report.kept and some.rows == read_pairs(path, THREE, max_samples=3, seed=1).rows
    assert len(read_pairs(path, THREE, fraction=0.5)) == round((len(ROWS) + 1) / 2)


def test_usual_names_are_found():
    assert usual_columns(["id", "hard_neg", "sent1", "sent0"]) == THREE
    assert usual_columns(["anchor", "positive"]) == ("anchor", "positive")
    assert usual_columns(["query", "positive", "negative", "x"]) == ("query", "positive", "negative")
    assert usual_columns(["text", "label"]) is None
    assert chosen_columns(["x", "y"], ["y", "x"], "here") == ("y", "x")


def test_mistakes_say_the_columns_and_what_to_pass(tmp_path):
    for asked, said in (
        (["a"], r"--columns names 1 column\(s\), 'a'; give --columns ANCHOR POSITIVE or .* columns are 'a', 'b', 'c'"),
        (["a", "b", "c", "a"], r"--columns names 4 column\(s\)"),
        (["a", "d"], r"here has no column 'd'.* its columns are 'a', 'b', 'c'"),
    ):
        with pytest.raises(UserError, match=said):
            chosen_columns(["a", "b", "c"], asked, "here")
    four = write(tmp_path / "four.csv", [("a", "b", "c", "d")], ("w", "x", "y", "z"))
    with pytest.raises(
        UserError, match="has 4 columns; name one with --text_column .* three with --columns .* 'w', 'x'"
    ):
        read_sentences(four)
    number = tmp_path / "number.jsonl"
    number.write_text('{"sent0": "a", "sent1": 3}\n')
    with pytest.raises(UserError, match="number.jsonl, line 1: 'sent1' is 3, not a text"):
        read_pairs(number, ("sent0", "sent1"))
    with pytest.raises(UserError, match="none of 1 rows has text in all of the columns w, x"):
        read_pairs(write(tmp_path / "none.csv", [("", "b")], ("w", "x")), ("w", "x"))
    (tmp_path / "plain.txt").write_text("a\n")
    assert header_of(tmp_path / "plain.txt") == []


def test_views_of_columns_say_which_texts_are_equal():
    views = Views(tiny_tokenizer(), 16, [View(columns=(name,)) for name in THREE])
    batch = views([dict(zip(THREE, row, strict=True)) for row in ROWS])
    assert batch["view_ids"].shape == (len(ROWS), 3) and batch["view_ids"][:, 0].equal(batch["text_ids"])
    assert batch["view_ids"][1, 0] == batch["view_ids"][0, 1] and len(np.unique(batch["view_ids"])) == len(SENTENCES)
    assert "view_ids" not in Views(tiny_tokenizer(), 16)([{"text": "a"}])
