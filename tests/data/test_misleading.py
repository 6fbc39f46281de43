"""Files that are not what they seem: each is read rightly with a line that says how, or refused with a remedy."""

import codecs
import gzip
import io
import json
import os
import re
import zipfile
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from transformers import BertTokenizer

from hf_focalcse.data.reading import FILE_HINTS, NO_HINTS, SENTENCE_HINTS
from hf_focalcse.data.sentences import Sentences, read_sentences
from hf_focalcse.errors import UserError
from hf_focalcse.options.evaluation import Evaluation
from hf_focalcse.options.experiments import InspectOptions
from hf_focalcse.options.training import Data

A, B, C = "the cat sleeps", "a dog runs", "music plays"
PLAIN = f"{A}\n{B}\n{C}\n"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the cat sleeps a dog runs music plays".split()]


def sheet(*rows, sheets=1) -> bytes:
    openpyxl = pytest.importorskip("openpyxl")
    book, out = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    for number in range(1, sheets):
        book.create_sheet(f"more {number}")
    book.save(out)
    return out.getvalue()


def resaved(book: bytes, change) -> bytes:
    """An Excel file whose sheet is changed as XML."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(book)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name == "xl/worksheets/sheet1.xml" else content)
    return out.getvalue()


def dimension(of: bytes):
    return lambda content: re.sub(rb'<dimension ref="[^"]*"', b'<dimension ref="' + of + b'"', content)


def nested_parquet() -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table({"body": [{"text": A}, {"text": None}, {"text": B}]}), out)
    return out.getvalue()


def lines(text: str, n: int = 12) -> str:
    return "".join(f"{text.format(i=i)}\n" for i in range(n))


STRAY = "text\n" + f'"{A}\n' + lines("line {i}", 20) + f'{B}"\n' + lines("more {i}", 25)
COLUMN = {"text_column": "text"}

# name -> (file, content, settings, the texts that are read, what a note says)
READ = {
    "UTF-16 with a mark": ("t.txt", PLAIN.encode("utf-16"), {}, [A, B, C], "read as utf-16"),
    "UTF-16 of big ends": (
        "t.csv",
        codecs.BOM_UTF16_BE + f"text\n{A}\n".encode("utf-16-be"),
        {},
        [A],
        "read as utf-16",
    ),
    "UTF-32": ("t.txt", PLAIN.encode("utf-32"), {}, [A, B, C], "read as utf-32"),
    "cp1252, named": ("t.txt", "café “noir”\n".encode("cp1252"), {"encoding": "cp1252"}, ["café “noir”"], "as cp1252"),
    "Shift JIS, named": (
        "t.txt",
        "猫が眠る\n".encode("shift_jis"),
        {"encoding": "shift_jis"},
        ["猫が眠る"],
        "as shift_jis",
    ),
    "lines that end in CR": ("t.txt", PLAIN.replace("\n", "\r"), {}, [A, B, C], r"end in \r alone"),
    "a table whose lines end in CR": ("t.csv", f"text\r{A}\r{B}\r", {}, [A, B], r"end in \r alone"),
    "Excel's line sep=;": (
        "t.csv",
        f'sep=;\ntext;label\n{A};1\n"b; c";2\n',
        COLUMN,
        [A, "b; c"],
        "names its delimiter",
    ),
    "semicolons, column named": ("t.csv", f"text;label\n{A};1\n{B};2\n", COLUMN, [A, B], "with a semicolon between"),
    "tabs in .csv, column named": ("t.csv", f"text\tlabel\n{A}\t1\n", COLUMN, [A], "with a tab between"),
    "commas in .tsv, column named": ("t.tsv", f"text,label\n{A},1\n", COLUMN, [A], "with a comma between"),
    "pipes, named": ("t.txt", f"id|text\n1|{A}\n", COLUMN | {"delimiter": "pipe"}, [A], ""),
    "tabs in .txt, as text": ("t.txt", lines("a\t{i}", 2), {"delimiter": "none"}, ["a\t0", "a\t1"], ""),
    "csv without quoting": ("t.csv", f'text\n"{A}\n{B}, "c\n', {"quotes": "none"}, [f'"{A}', f'{B}, "c'], ""),
    "tsv with quoting": ("t.tsv", f'text\tn\n"{A}"\t1\n', COLUMN | {"quotes": "double"}, [A], ""),
    "a cell of three lines": (
        "t.csv",
        f'text\n"{A}\n\n{B}"\n{C}\n',
        {},
        [f"{A}\n\n{B}", C],
        "line ends inside quotes",
    ),
    "a cell of 30 lines, meant": (
        "t.csv",
        f'text\n"{lines("x") * 3}"\n',
        {"quotes": "double"},
        [(lines("x") * 3).strip()],
        "the longest 37 lines",
    ),
    "JSON array": ("t.json", json.dumps([{"text": A}, {"text": None}, {"text": B}]), {}, [A, B], ""),
    "JSON array of strings": ("t.json", json.dumps([A, B]), {}, [A, B], ""),
    "JSON array called .jsonl": (
        "t.jsonl",
        json.dumps([{"text": A}, {"text": B}], indent=1),
        {},
        [A, B],
        "one JSON array",
    ),
    "JSON lines called .json": (
        "t.json",
        f'{{"text": "{A}"}}\n{{"text": "{B}"}}\n',
        {},
        [A, B],
        "one JSON object a line",
    ),
    "an array in an object": ("t.json", json.dumps({"n": 2, "data": [{"text": A}]}), {}, [A], "the array 'data'"),
    "nested JSON": ("t.jsonl", '{"body": {"text": "a"}}\n{"body": null}\n', {"text_column": "body.text"}, ["a"], ""),
    "nested Parquet": ("t.parquet", nested_parquet(), {"text_column": "body.text"}, [A, B], ""),
    "Excel": ("t.xlsx", lambda: sheet(["id", "text"], [1, A], [2, None], [3, B]), COLUMN, [A, B], ""),
    "Excel that says it is smaller": (
        "t.xlsx",
        lambda: resaved(sheet(["id", "text"], [1, A], [3, B]), dimension(b"A1:B1")),
        COLUMN,
        [A, B],
        "",
    ),
    "Excel that says it is larger": (
        "t.xlsx",
        lambda: resaved(sheet(["text"], [A], [B]), dimension(b"A1:XFD1048576")),
        {},
        [A, B],
        "",
    ),
    "Excel with three sheets": ("t.xlsx", lambda: sheet(["text"], [A], sheets=3), {}, [A], "of the 3 sheets"),
    "HTML entities": ("t.txt", lines("cats &amp; dogs {i}"), {}, None, "HTML entities"),
    "HTML tags": ("t.txt", lines("a <b>cat</b> {i}"), {}, None, "HTML tags"),
    "UTF-8 read as cp1252": ("t.txt", lines("cafÃ© {i}"), {}, None, "UTF-8 that was read as Windows text"),
    "several sentences in a line": (
        "t.txt",
        lines("A cat sleeps. It is {i}. Dogs run.", 30),
        {},
        None,
        "several sentences",
    ),
    "a word in each line": ("t.txt", lines("word{i}", 30), {}, None, "one word"),
    "quoted lines": ("t.txt", lines('"a cat {i}"', 30), {}, None, "double quotes"),
    "wrapped prose": (
        "t.txt",
        lines("it was the best of times and it was the worst of times {i}", 30),
        {},
        None,
        "wrapped",
    ),
}

# name -> (file, content, settings, what the message holds)
REFUSED = {
    "UTF-16 without a mark": ("t.txt", PLAIN.encode("utf-16-le"), {}, ["without a byte order mark", "utf-16-le"]),
    "cp1252": (
        "t.txt",
        b"a\ncaf\xe9\n",
        {},
        ["line 2, byte 4", "cp1252 (Windows)", "--encoding cp1252", "iconv -f CP1252"],
    ),
    "neither UTF-8 nor cp1252": ("t.txt", "猫が眠る\n".encode("shift_jis"), {}, ["line 1", "--encoding NAME"]),
    "another encoding than named": ("t.txt", b"a\n\x81\n", {"encoding": "cp1252"}, ["line 2", "0x81 is not cp1252"]),
    "an encoding that is none": ("t.txt", "a", {"encoding": "utf-99"}, ["'utf-99' is not known", "cp1252"]),
    "semicolons": (
        "t.csv",
        f"text;label\n{A};1\n{B};2\n",
        {},
        ["line 1", "a semicolon", "--delimiter semicolon", "--text_column"],
    ),
    "tabs in .csv": ("t.csv", f"text\tlabel\n{A}\t1\n", {}, ["a tab", "--delimiter tab"]),
    "tabs under a header of one": ("t.csv", "text\n" + lines("a\t{i}"), {}, ["a tab", "--delimiter tab"]),
    "commas in .tsv": ("t.tsv", f"text,label\n{A},1\n{B},2\n", {}, ["a comma", "--delimiter comma"]),
    "tabs in .txt": ("t.txt", lines(A + "\t{i}"), {}, ["columns", "a tab", "--delimiter tab", "--delimiter none"]),
    "semicolons in .txt": ("t.txt", lines(A + ";{i}"), {}, ["columns", "a semicolon", "--delimiter none"]),
    "labels in .txt": ("t.txt", lines(A + ",{i}"), {}, ["columns", "a comma"]),
    "several texts in a line": ("t.txt", lines(f"{A} ||| {B}"), {}, ["several texts", "|||", "a line of its own"]),
    "a sentence as the header": (
        "t.csv",
        f"The cat sleeps on the mat.\n{B}\n",
        {},
        ["'The cat sleeps", "call", ".txt"],
    ),
    "a number as the header": ("t.csv", "0.5\n0.7\n", {}, ["begins with '0.5'"]),
    "a stray pair of quotes": (
        "t.csv",
        STRAY,
        {},
        ["line 2", "22 lines, up to line 23", "--quotes none", "--quotes double"],
    ),
    "one stray quote": ("t.csv", f'text\n{A}\n"{B}\n{C}\n', {}, ["line 3", "CSV", "--quotes none"]),
    "a quote in a cell": ("t.csv", f'text\n"{A}" x\n{C}\n', {}, ["line 2", "CSV", "--quotes none"]),
    "quoted cells in .tsv": (
        "t.tsv",
        "text\tn\n" + lines('"cat {i}"\t1'),
        COLUMN,
        ["'text'", "--quotes double", "--quotes none"],
    ),
    "JSON called .txt": ("t.txt", lines('{{"text": "cat {i}"}}'), {}, ["JSON", ".jsonl"]),
    "HTML called .txt": ("t.txt", lines("<p>cat {i}</p>"), {}, ["HTML or XML"]),
    "a PDF": ("t.txt", b"%PDF-1.7\n" + b"x" * 99, {}, ["is a PDF"]),
    "an office document": ("t.txt", b"PK\x03\x04" + b"x" * 99, {}, ["zip", ".xlsx"]),
    "gzip without .gz": ("t.txt", gzip.compress(PLAIN.encode()), {}, ["gzip", ".gz"]),
    "a pointer of Git LFS": ("t.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n", {}, ["Git LFS"]),
    "Parquet called .csv": ("t.csv", nested_parquet(), {}, ["is a Parquet file"]),
    "Excel of formulas nobody computed": (
        "t.xlsx",
        lambda: sheet(["id", "text"], [1, A], [2, '="x"&"y"']),
        COLUMN,
        ["row 3", "formula", "save it"],
    ),
    "Excel with half a sheet": (
        "t.xlsx",
        lambda: resaved(sheet(["text"], [A]), lambda xml: xml[:-40]),
        {},
        ["not a whole Excel file", ".csv"],
    ),
    "Excel that is none": ("t.xlsx", b"text\na\n", {}, ["not a whole Excel file", ".csv"]),
    "nested JSON without a path": ("t.jsonl", '{"body": {"text": "a"}}\n', {}, ["line 1", "--text_column body.text"]),
    "a path that ends": (
        "t.jsonl",
        '{"body": {"text": "a"}}\n',
        {"text_column": "body.txt"},
        ["no 'txt'", "'body.txt'"],
    ),
    "a list in a cell": ("t.jsonl", '{"text": ["a", "b"]}\n', {}, ["line 1", "a row of its own"]),
    "an object with two arrays": ("t.json", '{"a": [], "b": []}', {}, ["2 arrays"]),
    "JSON without end": ("t.json", "[" * 100_000, {}, ["is not JSON"]),
    "a cut JSON array": ("t.json", '[{"text": "a"},', {}, ["is not JSON"]),
    "a delimiter of two signs": ("t.csv", "a", {"delimiter": "::"}, ["--delimiter is '::'", "one sign"]),
}


def made(folder: Path, name: str, content) -> Path:
    content = content() if callable(content) else content
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def texts(sentences: Sentences) -> list[str]:
    return [sentences[i]["text"] for i in range(len(sentences))]


@pytest.mark.parametrize("case", READ)
def test_it_is_read_rightly_and_the_report_says_how(tmp_path, case):
    name, content, settings, expected, note = READ[case]
    report = (sentences := read_sentences(made(tmp_path, name, content), **settings)).report
    assert expected is None or texts(sentences) == expected
    assert note in " ".join(report.notes), report.notes
    assert bool(note) == bool(report.notes) and all(line in str(report) for line in report.notes)


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_with_a_remedy(tmp_path, case):
    name, content, settings, parts = REFUSED[case]
    with pytest.raises(UserError) as caught:
        read_sentences(made(tmp_path, name, content), **settings)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message and not message.endswith(".")


def test_a_table_of_excel_without_openpyxl_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(UserError, match=r"pip install 'hf_focalcse\[xlsx\]'"):
        read_sentences(made(tmp_path, "t.xlsx", b"PK\x03\x04"))


def test_bytes_that_are_not_of_the_encoding_are_replaced_where_asked(tmp_path):
    path = made(tmp_path, "t.txt", b"a\xe9 b\nc\x81d\n\x81\x81\n")
    sentences = read_sentences(path, encoding="cp1252", encoding_errors="replace")
    assert texts(sentences) == ["aé b", "c\ufffdd", "\ufffd\ufffd"] and sentences.report.undecodable == 2
    with pytest.raises(UserError, match="line 2: byte 0x81 is not cp1252.*--encoding_errors replace"):
        read_sentences(path, encoding="cp1252")


def test_a_table_of_excel_that_unpacks_to_far_more_is_not_unpacked(tmp_path, monkeypatch):
    bomb = resaved(sheet(["text"], [A]), lambda xml: xml + b" " * 100_000)
    assert len(read_sentences(made(tmp_path, "t.xlsx", bomb))) == 1
    monkeypatch.setattr("hf_focalcse.data.sheets.MOST_UNPACKED", 100_000)
    with pytest.raises(UserError, match=r"t\.xlsx unpacks from .* bytes, more than are read .* as \.csv"):
        read_sentences(made(tmp_path, "t.xlsx", bomb))


# ---- what the tokenizer makes of it


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})


def test_scripts_that_the_tokenizer_cannot_read_raise_an_alarm(tmp_path, tokenizer):
    path = made(tmp_path, "t.txt", "".join(f"{chr(0x1F600 + i)}\n" for i in range(40)) + "แมว\n")
    report = read_sentences(path, tokenizer=tokenizer).report
    assert report.unknown_share == 1.0 and report.alike_share == pytest.approx(40 / 41)
    unknown, alike = report.alarms
    assert "it cannot read emoji and other signs (98% of the texts), Thai (2% of the texts)" in unknown
    assert "have the tokens of another text" in alike and "--mask_duplicates" in alike
    assert read_sentences(made(tmp_path, "u.txt", PLAIN), tokenizer=tokenizer).report.alarms == []


# ---- what happens to the file later


@pytest.mark.parametrize("change", ["rewritten", "cut", "grown"])
def test_a_file_that_changes_while_it_is_in_use_is_noticed(tmp_path, change):
    sentences = read_sentences(path := made(tmp_path, "t.txt", PLAIN * 3000))
    assert sentences[5]["text"] == C
    if change == "rewritten":
        path.write_bytes(PLAIN.encode().upper() * 3000)
        os.utime(path, ns=(1, 1))
    else:
        os.truncate(path, 4 if change == "cut" else 10**7)
    with pytest.raises(UserError, match=r"t\.txt was changed while it was in use.*--resume_from_checkpoint last"):
        sentences[5]


FLAG = re.compile(r"--\w+")
READERS = {  # a command that reads sentences -> what its messages offer, and the flags that it has
    "train": (SENTENCE_HINTS, {f.name for f in fields(Data)}),
    "inspect": (FILE_HINTS, {f.name for f in fields(InspectOptions)}),
    "eval": (NO_HINTS, {f.name for f in fields(Evaluation)}),
}


@pytest.mark.parametrize("command", READERS)
def test_a_remedy_names_flags_of_its_command_alone(tmp_path, command):
    hints, flags = READERS[command]
    for case, (name, content, settings, _) in REFUSED.items():
        if not settings:
            with pytest.raises(UserError) as caught:
                read_sentences(made(tmp_path, name, content), hints=hints)
            unknown = {flag.removeprefix("--") for flag in FLAG.findall(str(caught.value))} - flags
            assert not unknown, f"{case}: {caught.value}"
