"""Tables of pairs: which columns are taken, what is counted, and what is refused."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tiny import SENTENCES, tiny_tokenizer

from hf_focalcse.cli.preparation import find_pairs
from hf_focalcse.data.pairs import chosen_columns, header_of, pairs_of, read_pairs, usual_columns
from hf_focalcse.data.reading import Reading
from hf_focalcse.data.sentences import read_sentences
from hf_focalcse.data.views import View, Views
from hf_focalcse.errors import UserError
from hf_focalcse.options.training import Data

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


# ---- how files are read


A, B = ("a café", "the cat; asleep"), ('say "no', "a dog runs")
OF_TWO = ("sent0", "sent1")
READINGS = {  # how -> (name, bytes, flags, what a note says)
    "semicolons": ("t.csv", 'sent0;sent1\na café;"the cat; asleep"\n"say ""no";a dog runs\n', {}, "with a semicolon"),
    "named": ("t.csv", 'x/sent0/sent1\n1/a café/the cat; asleep\n2/"say ""no"/a dog runs\n', {"delimiter": "/"}, ""),
    "text": ("t.txt", 'sent0\tsent1\na café\tthe cat; asleep\nsay "no\ta dog runs\n', {"delimiter": "tab"}, ""),
    "no quotes": ("t.csv", 'sent0,sent1\na café,the cat; asleep\nsay "no,a dog runs\n', {"quotes": "none"}, ""),
    "cp1252": (
        "t.tsv",
        'sent0\tsent1\na café\tthe cat; asleep\nsay "no\ta dog runs\n'.encode("cp1252"),
        {"encoding": "cp1252"},
        "read as cp1252",
    ),
    "UTF-16": (
        "t.tsv",
        'sent0\tsent1\na café\tthe cat; asleep\nsay "no\ta dog runs\n'.encode("utf-16"),
        {},
        "read as utf-16",
    ),
}


@pytest.mark.parametrize("case", READINGS)
def test_tables_of_pairs_are_read_as_those_of_sentences(tmp_path, case):
    name, content, flags, note = READINGS[case]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    pairs = find_pairs(Data(train_file=str(path), columns=["sent0", "sent1"]), Reading(**flags), {})
    assert pairs.rows == [A, B]
    assert note in " ".join(pairs.report.notes) and bool(note) == bool(pairs.report.notes)
    assert "first  | a café | the cat; asleep" in str(pairs.report)
    usual = find_pairs(Data(train_file=str(path)), Reading(**flags), {})  # by the names of its columns
    assert usual.rows == [A, B]


def test_bytes_that_are_not_utf8_are_refused_or_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"sent0,sent1\na caf\xe9,b\n")
    with pytest.raises(UserError, match=r"line 2, byte 6 .* --encoding cp1252, or .* --encoding_errors replace"):
        find_pairs(Data(train_file=str(path)), Reading(), {})
    report = find_pairs(Data(train_file=str(path)), Reading("replace"), {}).report
    assert report.undecodable == 1 and "1 lines held bytes that are not UTF-8" in str(report)


def test_several_tables_of_pairs_are_one_run_of_rows(tmp_path):
    write(tmp_path / "a.csv", ROWS[:3])
    write(tmp_path / "b.jsonl", [*ROWS[2:5], ("a", "", "b")])
    pairs = find_pairs(Data(train_file=str(tmp_path)), Reading(), {"drop_duplicates": True})
    assert pairs.rows == ROWS[:5]
    of_a, of_b = pairs.report.files
    assert (of_a["kept"], of_b["kept"], of_b["blank"], of_b["duplicates"], of_b["dropped"]) == (3, 2, 1, 1, 1)
    assert "b.jsonl: 4 lines, 2 kept" in str(pairs.report)
    (tmp_path / "c.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"--columns x y names columns of tables, and .*c\.txt is none.* --delimiter"):
        find_pairs(Data(train_file=str(tmp_path), columns=["x", "y"]), Reading(), {})


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        (
            "t.jsonl",
            {"delimiter": "tab"},
            r"--delimiter is 'tab', .* \.csv, \.tsv but not to .*t\.jsonl; leave it out",
        ),
        ("t.jsonl", {"quotes": "none"}, "--quotes is 'none'"),
        ("t.parquet", {"encoding": "cp1252"}, r"--encoding is 'cp1252'.* \.json but not to"),
    ],
)
def test_what_does_not_apply_to_a_file_is_refused(tmp_path, name, flags, said):
    path = tmp_path / name
    if name == "t.jsonl":
        write(path)
    else:
        parquet.write_table(pa.table({"sent0": ["a"], "sent1": ["b"]}), path)
    for columns in (None, ["sent0", "sent1"]):
        with pytest.raises(UserError, match=said):
            find_pairs(Data(train_file=str(path), columns=columns), Reading(**flags), {})
    with pytest.raises(UserError, match=said):
        read_sentences(path, text_column="sent0", **flags)


def test_what_applies_to_one_of_several_files_is_taken(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "b.csv").write_text("text;n\nb;1\n")
    found = read_sentences(tmp_path, text_column="text", delimiter="semicolon")
    assert [found[i]["text"] for i in range(len(found))] == ["a", "b"]
    (tmp_path / "t.txt").write_text("a\n")
    with pytest.raises(UserError, match="--quotes is 'none'.* but not to .*t.txt; leave it out"):
        read_sentences(tmp_path / "t.txt", quotes="none")
    with pytest.raises(UserError, match=r"--delimiter is 'none'.* applies to \.txt, \.md but not to"):
        read_sentences(tmp_path / "b.csv", delimiter="none", text_column="text")


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
