"""The quickstart's data is what its README says."""

import re

import pytest

from hf_focalcse.quickstart import CORPUS, HELD_OUT, PAIRS


def letters_and_digits(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


@pytest.fixture(scope="module")
def files() -> list[list[str]]:
    """The sentences to train on, and those held out."""
    texts = [file.read_bytes().decode("utf-8") for file in (CORPUS, HELD_OUT)]
    assert all(text.endswith("\n") and "\r" not in text and "\t" not in text for text in texts)
    return [text[:-1].split("\n") for text in texts]


@pytest.fixture(scope="module")
def sentences(files) -> list[str]:
    return [sentence for file in files for sentence in file]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str, float]]:
    header, *rows = PAIRS.read_bytes().decode("utf-8")[:-1].split("\n")
    assert header == "sentence1\tsentence2\tscore"
    return [(first, second, float(score)) for first, second, score in (row.split("\t") for row in rows)]


def test_corpus_is_distinct_sentences_of_5_to_40_words(sentences):
    assert len(sentences) >= 5000
    assert CORPUS.stat().st_size < 1_500_000
    assert len({letters_and_digits(sentence) for sentence in sentences}) == len(sentences)
    wrong = [
        s for s in sentences if not 5 <= len(s.split()) <= 40 or s != s.strip() or re.search(r"[<>{}]|https?:", s)
    ]
    assert wrong == []


def test_every_line_has_a_licence(files):
    text = (CORPUS.parent / "LICENSES.md").read_text(encoding="utf-8")
    row = r"^\| (\d+)-(\d+) \| (\d+)-(\d+) \| .+ \| .+ \| .+ \|$"
    rows = [list(map(int, found)) for found in re.findall(row, text, re.MULTILINE)]
    for place, lines in zip((0, 2), files, strict=True):
        starts = [1, *(found[place + 1] + 1 for found in rows)]
        assert [found[place] for found in rows] == starts[:-1]
        assert rows[-1][place + 1] == len(lines)
    for source in ("World Factbook", "State of the Union", "WordNet 3.0", "Jargon File", "PostgreSQL"):
        assert re.search(rf"^## .*{source}", text, re.MULTILINE), f"no licence section for {source}"


def test_pairs_use_the_whole_scale(pairs):
    assert len(pairs) >= 240
    by_grade = {grade / 2: 0 for grade in range(11)}
    for _, _, score in pairs:
        by_grade[score] += 1
    assert min(by_grade.values()) >= 20, by_grade
    texts = [text for first, second, _ in pairs for text in (first, second)]
    assert all(text == text.strip() and len(text.split()) >= 3 for text in texts)
    assert len({letters_and_digits(text) for text in texts}) == len(texts)


def test_no_sentence_of_the_evaluation_sets_leaked(shared_data, sentences, pairs):
    seen = set()
    for file in sorted((shared_data / "sts").glob("*.tsv")):
        for row in file.read_text(encoding="utf-8").split("\n")[1:-1]:
            seen.update(letters_and_digits(text) for text in row.split("\t")[3:5])
    assert len(seen) > 10_000
    ours = [*sentences, *(text for first, second, _ in pairs for text in (first, second))]
    assert [text for text in ours if letters_and_digits(text) in seen] == []
