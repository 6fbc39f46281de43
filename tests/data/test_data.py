"""Reading text: each rule on literal files, each clever path against plain Python on the same bytes."""

import csv
import errno
import gzip
import io
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch.utils.data import DataLoader
from transformers import BertTokenizer

from hf_focalcse.data import files, lines, look
from hf_focalcse.data.sentences import Sentences, read_sentences, require
from hf_focalcse.data.views import Views, ids_id
from hf_focalcse.errors import UserError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg[].", "mask", "cat", "##s"]


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    return BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})


def write(path: Path, content: bytes | str) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def texts(sentences: Sentences) -> list[str]:
    return [sentences[i]["text"] for i in range(len(sentences))]


def slow_texts(raw: bytes) -> list[str]:
    """The twin of reading a text file: the bytes, split, decoded, stripped, all in memory."""
    lines = [line.decode("utf-8", "replace") for line in raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    return [line.strip() for line in lines if line.strip()]


# Lines


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".TXT"])
@pytest.mark.parametrize(
    ("content", "expected", "lines_read"),
    [
        ("one\ntwo\n", ["one", "two"], 2),
        ("one\ntwo", ["one", "two"], 2),
        ("one\r\ntwo\r\n", ["one", "two"], 2),
        ("\ufeffone\ntwo\ufeff\n", ["one", "two\ufeff"], 2),
        ("a\rb\n", ["a\rb"], 1),
        ("a\u2028b\x0bc\x0cd\x85e\x1cf\n", ["a\u2028b\x0bc\x0cd\x85e\x1cf"], 1),
        ("a\0b\n\0\n", ["a\0b", "\0"], 2),
        ("  a b \t\r\n\u3000c\xa0\n", ["a b", "c"], 2),
        ("\n\r\n \n\t\t\n\xa0\u3000\nx\n\n", ["x"], 7),
        ("NA\nnull\n#\n--loss\n", ["NA", "null", "#", "--loss"], 4),
        ('"a, b"\nx\ty\n', ['"a, b"', "x\ty"], 2),
    ],
)
def test_lines_of_text(tmp_path, suffix, content, expected, lines_read):
    sentences = read_sentences(write(tmp_path / f"t{suffix}", content))
    assert texts(sentences) == expected
    report = sentences.report
    assert (report.lines_read, report.kept, report.dropped) == (lines_read, len(expected), 0)
    assert report.blank == lines_read - len(expected)


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_random_bytes_against_plain_python(tmp_path, monkeypatch, block):
    monkeypatch.setattr(lines, "BLOCK", block)
    pieces = [
        b"a",
        b"bc",
        b" ",
        b"\t",
        b"\r",
        b"\n",
        b"\n",
        b"\r\n",
        "é\u3000\u2028\xa0😀".encode(),
        b"\xff",
        b"\xe2\x82",
    ]
    for seed in range(60):
        rng = random.Random(seed)
        raw = b"x" + b"".join(rng.choices(pieces, k=rng.randrange(60)))
        raw += b"" if b"\n" in raw else b"\n"  # without any, lines end in \r
        plain = {"encoding_errors": "replace", "delimiter": "none"}  # few lines, many of them with a tab
        sentences = read_sentences(write(tmp_path / "t.txt", raw), **plain)
        assert texts(sentences) == slow_texts(raw)
        kept, report = slow_texts(raw), sentences.report
        assert report.duplicates == len(kept) - len(set(kept))
        assert report.lines_read == raw.count(b"\n") + (not raw.endswith(b"\n"))
        assert report.undecodable == sum("\ufffd" in line.decode("utf-8", "replace") for line in raw.split(b"\n"))
        distinct = read_sentences(tmp_path / "t.txt", drop_duplicates=True, **plain)
        assert texts(distinct) == list(dict.fromkeys(kept))
        again = write(tmp_path / "u.txt.gz", "\n\n".join(kept))
        assert report.sha256 == read_sentences(again, delimiter="none").report.sha256


def test_stress_file(shared_data, tokenizer):
    path = shared_data / "corpus" / "stress.txt"
    with pytest.raises(UserError, match=r"stress\.txt, line 52, byte 21 of the line \(0xff\)"):
        read_sentences(path)
    sentences = read_sentences(path, encoding_errors="replace", tokenizer=tokenizer)
    report = sentences.report
    assert texts(sentences) == slow_texts(path.read_bytes())
    assert (report.lines_read, report.blank, report.kept, report.dropped) == (74, 8, 66, 0)
    assert (report.duplicates, report.undecodable) == (3, 4)  # lines 16, 70, 71; lines 52 to 55
    assert len(read_sentences(path, encoding_errors="replace", drop_duplicates=True)) == 63
    batch = Views(tokenizer, 32)([sentences[i] for i in range(66)])
    assert batch["input_ids"].shape == (66, 2, 32)
    notes = list(csv.reader((path.parent / "stress.notes.tsv").open(), delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    assert [int(size) for _, size, _ in notes] == [len(line) for line in path.read_bytes().split(b"\n")]


# Tables

ROWS = ["plain", 'comma, "quoted"', "line\nend", "tab\there", "  spaces ", "", "NA", "null", "é😀", "a\rb", "plain"]
KEPT = [row.strip() for row in ROWS if row]


def as_csv(rows: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["id", "text"], *([str(i), row] for i, row in enumerate(rows))])
    return out.getvalue()


def as_jsonl(rows: list[str | None]) -> str:
    return "".join(json.dumps({"id": i, "text": row}) + "\n" for i, row in enumerate(rows))


def as_parquet(rows: list[str | None], kind: pa.DataType | None = None) -> bytes:
    out = io.BytesIO()
    columns = {"id": list(range(len(rows))), "text": pa.array(rows, kind or pa.string())}
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables_hold_the_same_sentences(tmp_path, kind, zipped):
    content = {"csv": as_csv, "jsonl": as_jsonl, "parquet": as_parquet}[kind](ROWS)
    sentences = read_sentences(write(tmp_path / f"t.{kind}{zipped}", content), text_column="text")
    report = sentences.report
    assert texts(sentences) == KEPT
    assert (report.lines_read, report.blank, report.kept, report.duplicates) == (11, 1, 10, 1)
    reference = read_sentences(write(tmp_path / "r.jsonl", as_jsonl(KEPT)), text_column="text")
    assert report.sha256 == reference.report.sha256 and report.column == "text"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tsv_has_no_quoting(tmp_path, end):
    rows = ["text\tscore", '"a\t1', 'b" c\t2', "\t3", "", "NA\t4"]
    sentences = read_sentences(write(tmp_path / "t.tsv", "\ufeff" + end.join(rows)), text_column="text")
    assert texts(sentences) == ['"a', 'b" c', "NA"] and sentences.report.blank == 2


def test_one_column_is_taken_and_null_is_blank(tmp_path):
    sentences = read_sentences(
        write(tmp_path / "t.jsonl", '{"s": "a"}\n\n{"s": null}\n{"s": " "}\n{"s": "b", "t": 1}')
    )
    assert texts(sentences) == ["a", "b"] and sentences.report.blank == 3 and sentences.report.column == "s"
    kind = pa.dictionary(pa.int8(), pa.string())
    for number, column in enumerate((pa.large_string(), kind)):
        path = write(tmp_path / f"{number}.parquet", as_parquet(["a", None, "b"], column))
        assert texts(read_sentences(path, text_column="text")) == ["a", "b"]
    assert texts(read_sentences(write(tmp_path / "t.csv", "text\na\n\nb\n"))) == ["a", "b"]


def test_bytes_that_are_not_utf8_are_replaced_in_every_format(tmp_path):
    arrow = io.BytesIO()
    column = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a\xff", b"b"]).buffers())
    parquet.write_table(pa.table({"text": column}), arrow)
    raw = {"txt": b"a\xff\nb\n", "csv": b"text\na\xff\nb\n", "tsv": b"text\na\xff\nb\n", "parquet": arrow.getvalue()}
    raw["jsonl"] = b'{"text": "a\xff"}\n{"text": "b"}\n'
    prints = set()
    for kind, content in raw.items():
        for suffix in (kind, kind + ".gz"):
            path = write(tmp_path / f"t.{suffix}", content)
            number = 2 if kind in ("csv", "tsv") else 1
            unit = "row" if kind == "parquet" else "line"
            with pytest.raises(UserError, match=rf"t\.{suffix}, {unit} {number}, byte \d+ of the {unit} \(0xff\)"):
                read_sentences(path)
            sentences = read_sentences(path, encoding_errors="replace")
            assert texts(sentences) == ["a\ufffd", "b"] and sentences.report.undecodable == 1
            prints.add(sentences.report.sha256)
    assert len(prints) == 1
    half = read_sentences(write(tmp_path / "h.jsonl", '{"t": "a\\ud800"}'), encoding_errors="replace")
    assert texts(half) == ["a\ufffd"] and half.report.undecodable == 1


# Report


def test_max_samples_is_a_seeded_subset_in_order(tmp_path):
    path = write(tmp_path / "t.txt", "\n".join(f"{i:03}" for i in range(200)))
    first, again, other = (read_sentences(path, max_samples=20, seed=seed) for seed in (1, 1, 2))
    assert texts(first) == texts(again) == sorted(texts(first)) and len(set(texts(first))) == 20
    assert texts(first) != texts(other)
    assert (first.report.dropped, first.report.max_samples) == (180, 20)
    assert texts(read_sentences(path, max_samples=500)) == texts(read_sentences(path))


def test_fingerprint_knows_where_sentences_end(tmp_path):
    prints = [
        read_sentences(write(tmp_path / "t.jsonl", as_jsonl(rows)), text_column="text").report.sha256
        for rows in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab\nc"])
    ]
    assert len(set(prints)) == 5


def test_truncated_share(tmp_path, tokenizer, monkeypatch):
    rows = ["a b c"] * 3 + ["a b c d"]  # 5 and 6 tokens with [CLS] and [SEP]
    path = write(tmp_path / "t.txt", "\n".join(rows))
    report = read_sentences(path, tokenizer=tokenizer, max_seq_length=5).report
    assert (report.truncated_share, report.truncated_sample) == (0.25, 4)
    assert "25.0% of all sentences are longer than 5 tokens" in str(report)
    monkeypatch.setattr(look, "LOOKED_AT", 2)  # the first and the last
    report = read_sentences(path, tokenizer=tokenizer, max_seq_length=5).report
    assert (report.truncated_share, report.truncated_sample) == (0.5, 2)
    assert "an evenly spaced sample of 2 sentences" in str(report)


def test_report_is_safe_for_a_terminal(tmp_path):
    path = write(tmp_path / "t.txt", "\x1b[31mred\x07\u202eabc\n" + "é" * 500 + "\nlast\u2028line")
    report = read_sentences(path).report
    assert report.samples == [r"\x1b[31mred\x07\u202eabc", "é" * 99 + "…", r"last\u2028line"]
    assert str(report).replace("\n", "").isprintable()
    json.dumps(report.to_dict())


# Errors: (file name or None, content, settings, what the message must name)

BAD_FILES = {
    "missing": (None, None, {"train_file": "no/such.txt"}, ["no such file: no/such.txt"]),
    "hub id as file": (None, None, {"train_file": "org/name"}, ["no such file: org/name", "--train_file"]),
    "folder": (None, None, {"train_file": Path(__file__).parent}, ["holds no file of a known format", ".txt, .md"]),
    "empty name": (None, None, {"train_file": ""}, ["--train_file is empty"]),
    "pattern": (None, None, {"train_file": "no/*.such"}, ["no file is called no/*.such", "quoted"]),
    "several": ("t.txt", "a", {"train_file": ["no.txt", "t.txt"]}, ["no such file: no.txt"]),
    "empty": ("t.txt", "", {}, ["t.txt is empty"]),
    "empty gz": ("t.txt.gz", "", {}, ["t.txt.gz is empty"]),
    "blank": ("t.txt", "\n \n\t\n", {}, ["t.txt holds no sentence", "3 lines, none with text"]),
    "only a mark": ("t.txt", "\ufeff\n", {}, ["t.txt holds no sentence"]),
    "blank table": ("t.csv", "text\n\n", {}, ["t.csv holds no sentence"]),
    "white table": ("t.jsonl", '{"a": " "}', {}, ["t.jsonl holds no sentence"]),
    "only a header": ("t.tsv", "text\n", {}, ["t.tsv holds no sentence", "0 rows"]),
    "suffix": ("t.doc", "a", {}, ["t.doc", ".txt, .md, .csv, .tsv, .jsonl, .json, .parquet, .xlsx", ".gz"]),
    "no suffix": ("t", "a", {}, ["must end in .txt, .md, .csv"]),
    "not gz": ("t.txt.gz", b"RAW", {}, ["t.txt.gz cannot be read and unpacked"]),
    "latin-1": ("t.txt", b"a\nb\ncaf\xe9\n", {}, ["line 3, byte 4", "0xe9", "--encoding_errors replace"]),
    "text column of text": ("t.txt", "a", {"text_column": "text"}, ["'text'", "--text_column"]),
    "no column": ("t.csv", "id,text\n1,a\n", {"text_column": "txt"}, ["'txt'", "did you mean 'text'", "'id', 'text'"]),
    "two columns": ("t.csv", "id,text\n1,a\n", {}, ["2 columns", "--text_column", "'id', 'text'"]),
    "same column twice": ("t.tsv", "a\ta\n1\t2\n", {"text_column": "a"}, ["more than one column 'a'"]),
    "ragged": ("t.csv", "id,text\n1,a\n2,b, c\n", {"text_column": "text"}, ["line 3 has 3 cells", "2"]),
    "ragged tsv": ("t.tsv", "id\ttext\n1\ta\n2\n", {"text_column": "text"}, ["line 3 has 1 cells", "2"]),
    "open quote": ("t.csv", 'text\n"a\nb\n', {}, ["line 2", "CSV"]),
    "not JSON": ("t.jsonl", '{"a": "b"}\n{a}\n', {}, ["line 2: not JSON"]),
    "JSON list": ("t.jsonl", '["a"]\n', {}, ["line 1: a JSON list"]),
    "JSON number": ("t.jsonl", '{"a": "b"}\n{"a": 3}\n', {}, ["line 2: 'a' must be a string or null, not 3"]),
    "JSON key": (
        "t.jsonl",
        '{"a": "b"}\n{"c": "b"}\n',
        {},
        ["t.jsonl, line 2 has no column 'a'; its columns are 'c'"],
    ),
    "half a character": ("t.jsonl", '{"a": "\\udc00"}\n', {}, ["line 1", r"\udc00"]),
    "not parquet": ("t.parquet", b"PAR1 no", {}, ["t.parquet is not a whole Parquet file"]),
    "cut parquet": ("t.parquet", as_parquet(ROWS)[:-20], {}, ["t.parquet is not a whole Parquet file"]),
    "parquet number": (
        "t.parquet",
        as_parquet(ROWS),
        {"text_column": "id"},
        ["row 1: 'id' must be a string or null, not 0"],
    ),
    "parquet column": ("t.parquet", as_parquet(ROWS), {"text_column": "x"}, ["no column 'x'", "'id', 'text'"]),
    "both": ("t.txt", "a", {"dataset_name": "org/name"}, ["--train_file", "--dataset_name", "both"]),
    "neither": (None, None, {}, ["--train_file", "--dataset_name", "neither"]),
    "hub setting": ("t.txt", "a", {"dataset_revision": "x"}, ["--dataset_revision", "--dataset_name"]),
    "split of one file": (
        None,
        None,
        {"dataset_name": "o/n", "dataset_file": "t.txt", "dataset_split": "test"},
        ["--dataset_split test", "t.txt"],
    ),
    "encoding errors": ("t.txt", "a", {"encoding_errors": "ignore"}, ["must be strict or replace", "'ignore'"]),
    "max samples": ("t.txt", "a", {"max_samples": 0}, ["is 0; it must be at least 1"]),
    "local folder as hub id": (
        None,
        None,
        {"dataset_name": str(Path(__file__).parent)},
        ["--dataset_name is a Hub id"],
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_wrong_input_gives_one_sentence(tmp_path, case):
    name, content, settings, parts = BAD_FILES[case]
    if name is not None:
        path = tmp_path / name
        path.write_bytes(content) if case == "not gz" else write(path, content)
        settings = {"train_file": path, **settings}
    with pytest.raises(UserError) as caught:
        read_sentences(**settings)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message and not message.endswith(".") and ". " not in message


def test_cut_gz(tmp_path):
    whole = gzip.compress(os.urandom(5000).hex().encode())
    path = tmp_path / "t.txt.gz"
    for cut in (whole[:-9], whole[:200], whole[:300] + b"\0" * 40 + whole[340:]):
        path.write_bytes(cut)
        with pytest.raises(UserError, match="cannot be read and unpacked"):
            read_sentences(path)


def test_require(tmp_path):
    sentences = read_sentences(write(tmp_path / "t.txt", "a\nb\n"))
    require(sentences, 2)
    with pytest.raises(UserError, match=r"2 sentences, fewer than one batch of 3.*--per_device_train_batch_size"):
        require(sentences, 3)


# Life of the mapped files


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_same(tmp_path, tokenizer, suffix, method):
    sentences = read_sentences(write(tmp_path / f"t{suffix}", "a b\nc\nd e f\ng\n"))
    collate = Views(tokenizer, 8)
    alone = list(DataLoader(sentences, batch_size=2, collate_fn=collate))
    workers = DataLoader(sentences, batch_size=2, num_workers=2, collate_fn=collate, multiprocessing_context=method)
    for here, there in zip(alone, workers, strict=True):
        assert all(torch.equal(here[name], there[name]) for name in here)
    assert texts(sentences) == ["a b", "c", "d e f", "g"]  # still there after the workers ended


def test_a_file_changed_in_between_is_noticed(tmp_path):
    path = write(tmp_path / "t.txt", "a\nb\n")
    frozen = pickle.dumps(read_sentences(path))
    assert texts(pickle.loads(frozen)) == ["a", "b"]
    write(path, "longer\nthan before\n")
    with pytest.raises(UserError, match="was changed"):
        pickle.loads(frozen)


def test_temporary_files_go(tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    spool.mkdir()
    program = """if True:
        import os, pickle, sys
        from hf_focalcse.data.sentences import read_sentences
        from hf_focalcse.errors import UserError
        sentences = read_sentences(sys.argv[1])
        assert os.listdir(os.environ["TMPDIR"]) == []  # it has no name, so that a kill leaves nothing
        if os.fork() == 0:
            del sentences
            os._exit(0)
        os.wait()
        assert pickle.loads(pickle.dumps(sentences))[0]["text"] == "a"
        for bad in sys.argv[2:]:
            try:
                read_sentences(bad)
            except UserError:
                continue
            raise SystemExit(bad)
    """
    good = write(tmp_path / "t.txt.gz", "a\n")
    bad = [write(tmp_path / "b.txt.gz", b"\n"), write(tmp_path / "b.csv", b"text\na\n\xff")]
    bad += [write(tmp_path / "c.csv.gz", b"text\n\n"), write(tmp_path / "d.txt.gz", b"")]
    environment = os.environ | {"TMPDIR": str(spool), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, good, *bad], env=environment, check=True)
    assert os.listdir(spool) == []


def test_full_disk_names_the_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.shutil, "copyfileobj", full)
    with pytest.raises(UserError, match=r"No space left on device.*has room"):
        read_sentences(write(tmp_path / "t.txt.gz", "a"))


# Collator


def test_collator_literals(tokenizer):
    rows = [{"text": "a b"}, {"text": "cats d . e f g"}, {"text": "a b"}]
    tokenizer.padding_side = "left"  # must not matter
    batch = Views(tokenizer, max_seq_length=6, views=3)(rows)
    one, two = [2, 5, 6, 3, 0, 0], [2, WORDS.index("cat"), WORDS.index("##s"), 8, WORDS.index("."), 3]
    assert batch["input_ids"].tolist() == [[one] * 3, [two] * 3, [one] * 3]
    assert batch["attention_mask"].tolist() == [[[1, 1, 1, 1, 0, 0]] * 3, [[1] * 6] * 3, [[1, 1, 1, 1, 0, 0]] * 3]
    assert set(batch) == {"input_ids", "attention_mask", "text_ids"}
    assert all(tensor.dtype == torch.int64 and tensor.is_contiguous() for tensor in batch.values())
    ids = batch["text_ids"]
    assert ids[0] == ids[2] != ids[1]
    assert Views(tokenizer, 6)([{"text": "a b"}])["text_ids"].item() == ids[0].item()
    assert ids[0].item() == ids_id(one[:4])  # of the tokens: what they do not tell apart is equal


def test_special_tokens_in_a_sentence_are_text(tokenizer):
    text = "a [MASK] b"
    assert tokenizer.mask_token_id in tokenizer(text)["input_ids"]
    ids = Views(tokenizer, 16)([{"text": text}])["input_ids"][0, 0]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "a", "[", "mask", "]", "b", "[SEP]"]
    assert tokenizer.mask_token_id in tokenizer(text)["input_ids"]  # and the tokenizer is left as it was


def test_collator_refuses_no_views(tokenizer):
    with pytest.raises(UserError, match="views is 0; it must be at least 1"):
        Views(tokenizer, 16, views=0)


def test_indices(tmp_path):
    sentences = read_sentences(write(tmp_path / "t.txt", "a\nb\nc"))
    assert sentences[-1] == sentences[np.int64(2)] == {"text": "c"}
    with pytest.raises(IndexError):
        sentences[3]
    assert [row["text"] for row in sentences] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["mark.txt", "mark.tsv", "mark.csv", "mark.jsonl"])
def test_a_byte_order_mark_alone_is_no_sentence(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf")
    with pytest.raises(UserError, match=name):
        read_sentences(tmp_path / name)


def test_a_csv_cell_may_be_long(tmp_path):
    (tmp_path / "long.csv").write_text("text\n" + "word " * 50_000 + "\n")
    assert len(read_sentences(tmp_path / "long.csv")[0]["text"]) == 249_999
