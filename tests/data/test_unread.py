"""Words that a tokenizer does not know: counted by its vocabulary's own rule, and said before training."""

import numpy as np
import pytest
from tiny import SENTENCES, tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_focalcse.data import look as looking
from hf_focalcse.data.look import look
from hf_focalcse.data.pairs import pairs_of
from hf_focalcse.data.sentences import read_sentences
from hf_focalcse.data.unread import count_unread, unknown_id
from hf_focalcse.data.views import token_ids


def unigram(unk_id, byte_fallback=False):
    pieces = [("<unk>", 0.0), ("▁a", -1.0), ("▁", -2.0), ("b", -2.0)]
    made = Tokenizer(models.Unigram(pieces, unk_id=unk_id, byte_fallback=byte_fallback))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<unk>")


def bytes_of(end="<end>"):
    letters = [end, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # the class of some decoders names the end token as the unknown one
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=end, pad_token=end)


def test_the_vocabulary_says_what_is_unknown():
    assert unknown_id(tiny_tokenizer()) == 1
    assert unknown_id(unigram(0)) == 0
    assert unknown_id(unigram(None)) is None and unknown_id(unigram(0, byte_fallback=True)) is None
    assert bytes_of().unk_token_id == 0 and unknown_id(bytes_of()) is None


def counted(tokenizer, *texts):
    return count_unread(tokenizer, texts, token_ids(tokenizer, texts, 32, split_special_tokens=True))


def test_tokens_and_sentences_are_counted():
    found = counted(tiny_tokenizer(), "a man 🙂", "🙂", "ሰላም ልጅ", "the dog [UNK]", "")
    assert (found.texts, found.unknown, found.lost) == (5, 6, 3)  # an empty text is nothing too
    assert found.tokens == 3 + 1 + 2 + 2 + len("[ u ##n ##k ]".split()) and found.examples == ("🙂", "ሰላም", "ልጅ")
    assert found.scripts == ("emoji and other signs (40% of the texts)", "Ethiopic (20% of the texts)")
    assert found.alarming and "6 of 13 tokens (46.2%)" in str(found) and "look alike" in str(found)
    assert counted(bytes_of(), "🙂 <end>").unknown == 0


def test_known_text_is_passed_over_and_much_of_it_is_sampled(monkeypatch):
    found = look(lambda i: [SENTENCES[i]], len(SENTENCES), tiny_tokenizer(), 32)
    assert found.unknown_share == 0 and found.notes == found.alarms == []
    monkeypatch.setattr(looking, "LOOKED_AT", 3)
    texts = [f"a {mark}" for mark in np.repeat(["dog", "🙂"], 50)]
    found = look(lambda i: [texts[i]], len(texts), tiny_tokenizer(), 32)
    assert found.looked_at == 3 and found.unknown_share == pytest.approx(2 / 6)
    assert "2 of 6 tokens (33.3%)" in found.alarms[0] and "hold nothing" not in found.alarms[0]


MARKS = [("🙂", "🎸", "🐕"), ("สวัสดี", "ขอบคุณ", "ลาก่อน")]


@pytest.mark.parametrize("marks", MARKS)
def test_it_is_said_once_of_sentences_and_of_every_column_of_pairs(tmp_path, marks):
    texts = [*marks, SENTENCES[0]]
    (tmp_path / "t.txt").write_text("\n".join(texts))
    of_sentences = read_sentences(tmp_path / "t.txt", tokenizer=tiny_tokenizer()).report
    rows = [{"anchor": SENTENCES[0], "positive": text} for text in texts]
    of_pairs = pairs_of(rows, ("anchor", "positive"), "memory", tokenizer=tiny_tokenizer()).report
    for report in (of_sentences, of_pairs):
        (said,) = [note for note in report.notes if "does not know" in note]
        assert "3 of the texts hold nothing that it knows" in said and repr(marks[0]) in said
        assert "start from an encoder whose tokenizer reads this language or script" in said
        assert f"training text: {said}" in report.alarms and str(report).count("does not know") == 1
    assert of_sentences.unknown_share > of_pairs.unknown_share > 0
