"""Several files, folders and patterns as training text, against one file that holds the same lines."""

import gzip
import os
import pickle
from pathlib import Path

import pytest

from hf_focalcse.data import several
from hf_focalcse.data.files import MappedFile
from hf_focalcse.data.sentences import read_sentences
from hf_focalcse.errors import UserError

FILES = {  # in the order in which a folder is read; the words between the bars are the sentences
    "a.txt": "one\n\ntwo\n",
    "b/c.md": "# three\n- one\n",
    "b/d.csv": "text\nfour\n\nfive\n",
    "b/e.jsonl": '{"text": " six "}\n{"text": null}\n',
    "b/empty.txt": "",
    "f.txt": "caf\xe9\r\nfour",
}
ORDER = ["one", "two", "# three", "- one", "four", "five", "six", "caf\xe9", "four"]
OTHERS = ("b/picture.png", "code.py", ".hidden.txt", ".git/x.txt")


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> Path:
    """A folder with FILES and with files that are no training text; the current folder is the one above."""
    for name, text in [*FILES.items(), *((name, "nothing\n") for name in OTHERS)]:
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(text, newline="")
    monkeypatch.chdir(tmp_path)
    return Path("corpus")


def texts(sentences) -> list[str]:
    return [sentences[i]["text"] for i in range(len(sentences))]


@pytest.mark.parametrize("large", [1, 20, 1 << 24])
def test_a_folder_is_one_text_with_counts_for_each_file(corpus, monkeypatch, large):
    monkeypatch.setattr(several, "LARGE", large)  # text files from so many bytes on are mapped where they lie
    sentences = read_sentences(corpus)
    (corpus.parent / "all.txt").write_text("\n".join(ORDER))
    report, whole = sentences.report, read_sentences("all.txt").report
    assert texts(sentences) == ORDER and sentences.lines.tolist() == [1, 3, 4, 5, 6, 8, 9, 11, 12]
    assert report.sha256 == whole.sha256 and report.samples == whole.samples
    assert (report.source, report.column, report.left_out) == ("corpus", "text", 2)
    assert (report.lines_read, report.blank, report.kept, report.duplicates) == (12, 3, 9, 1)
    assert [(f["name"].removeprefix("corpus/"), f["lines_read"], f["blank"], f["kept"], f["duplicates"])
            for f in report.files] == [
        ("a.txt", 3, 1, 2, 0), ("b/c.md", 2, 0, 2, 0), ("b/d.csv", 3, 1, 2, 0), ("b/e.jsonl", 2, 1, 1, 0),
        ("b/empty.txt", 0, 0, 0, 0), ("f.txt", 2, 0, 2, 1),
    ]  # fmt: skip
    said = str(report)
    assert "Training text: corpus, 6 files, column 'text'" in said
    assert "of other formats, and left out: 2 of the folder's files" in said
    assert "corpus/f.txt: 2 lines, 2 kept, 0 blank, 0 dropped; 1 repeat an earlier one" in said
    where = {file.path for file in sentences.file.files}
    assert (os.path.abspath(corpus / "f.txt") in where) == (large == 1) and len(where) == {1: 4, 20: 1}.get(large, 1)
    assert texts(pickle.loads(pickle.dumps(sentences))) == ORDER


def test_a_repeat_in_another_file_is_dropped(corpus):
    sentences = read_sentences(corpus, drop_duplicates=True)
    assert texts(sentences) == ORDER[:-1]
    assert [file["dropped"] for file in sentences.report.files] == [0, 0, 0, 0, 0, 1]
    some = read_sentences(corpus, max_samples=4, seed=1)
    assert sum(file["kept"] for file in some.report.files) == 4 == len(some)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["corpus/f.txt", "corpus/a.txt"], ["caf\xe9", "four", "one", "two"]),  # as they were named
        (["corpus/*.txt"], ["one", "two", "caf\xe9", "four"]),
        (["corpus/*.txt", "corpus/a.txt", "./corpus/f.txt"], ["one", "two", "caf\xe9", "four"]),  # each once
        (["corpus/**/*.txt"], ["one", "two", "caf\xe9", "four"]),
        (["corpus/b/c*"], ["# three", "- one"]),
        (["corpus/b", "corpus/a.txt"], ["# three", "- one", "four", "five", "six", "one", "two"]),
    ],
)
def test_names_patterns_and_folders(corpus, names, expected):
    assert texts(read_sentences(names)) == expected


def test_a_single_file_is_read_as_ever(corpus):
    """Where it lies, and with the same report, however it is named."""
    alone, listed = read_sentences("./corpus/a.txt"), read_sentences(["./corpus/a.txt"])
    assert alone.report == listed.report and alone.report.source == "./corpus/a.txt" and not alone.report.files
    for sentences in (alone, listed):
        assert isinstance(sentences.file, MappedFile) and sentences.file.path == os.path.abspath(corpus / "a.txt")
    assert read_sentences("corpus/a*").report.sha256 == alone.report.sha256
    (corpus.parent / "[x].txt").write_text("signs\n")
    assert texts(read_sentences("[x].txt")) == ["signs"]  # what exists is no pattern


@pytest.mark.parametrize(
    ("files", "settings", "said"),
    [
        ({"a.csv": "id,text\n1,a\n", "b.txt": "b\n"}, {}, r"a\.csv has 2 columns; name one with --text_column"),
        ({"a.csv": "x\n1\n", "b.csv": "y\n2\n"}, {}, r"a\.csv and .*b\.csv .* different names, 'x' and 'y'; give"),
        ({"a.csv": "x\n1\n", "b.csv": "y\n2\n"}, {"text_column": "x"}, r"b\.csv has no column 'x'"),
        ({"a.txt": "a\n", "b.md": "b\n"}, {"text_column": "x"}, r"corpus2 is plain text and has no column 'x'"),
        ({"a.txt": "", "b.csv": "text\n"}, {}, r"corpus2 holds no sentence: 2 files, none with text"),
        ({"a.txt": "\n", "b.txt": " \n"}, {}, r"corpus2 holds no sentence: 2 files, none with text"),
        ({"a.txt": "a\n", "b.txt": b"\xff\n"}, {}, r"b\.txt, line 1, byte 1 of the line \(0xff\) is not UTF-8"),
        ({"a.png": "a\n"}, {}, r"the folder corpus2 holds no file of a known format \(\.txt, \.md"),
        ({"a.txt": "a\n", "b.doc": "b\n"}, {"train_file": ["corpus2/*"]}, r"b\.doc: the name must end in \.txt, \.md"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_in_one_sentence(tmp_path, monkeypatch, files, settings, said):
    monkeypatch.chdir(tmp_path)
    Path("corpus2").mkdir()
    for name, content in files.items():
        (Path("corpus2") / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=said) as caught:
        read_sentences(**{"train_file": "corpus2"} | settings)
    assert "\n" not in str(caught.value) and ". " not in str(caught.value)


def test_an_empty_file_among_others_is_counted_and_alone_it_is_refused(corpus):
    (corpus / "zipped.txt.gz").write_bytes(gzip.compress(b""))
    (corpus / "header.csv").write_text("text\n")
    for name in ("zipped.txt.gz", "header.csv", "b/empty.txt"):
        files = read_sentences(["corpus/a.txt", f"corpus/{name}"]).report.files
        assert [file["kept"] for file in files] == [2, 0]
        with pytest.raises(UserError, match="is empty|holds no sentence"):
            read_sentences([f"corpus/{name}"])


def test_a_column_is_that_of_the_tables(corpus):
    (corpus / "b/d.csv").write_text("id,text\n1,four\n2,five\n")
    sentences = read_sentences(corpus, text_column="text")
    assert texts(sentences) == ORDER and sentences.report.column == "text"


def test_temporary_files_of_several_go(corpus, tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    sentences = read_sentences(corpus)
    assert not os.listdir(spool)  # the lines of all files lie in one without a name
    del sentences
    monkeypatch.setattr(several, "LARGE", 1)
    (corpus / "f.txt").write_bytes(b"\xff")
    with pytest.raises(UserError):
        read_sentences(corpus)
    read_sentences(["corpus/a.txt", "corpus/b/c.md"])
    assert not os.listdir(spool)
