"""Words that a tokenizer does not know: counted by its vocabulary's own rule, and said before training."""

import numpy as np
import pytest
from tiny import SENTENCES, save_tiny, tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_focalcse.cli.preparation import decide_unread
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.reading import count_unread, find_unread, unknown_id
from hf_focalcse.parsing.settings import parse


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


def test_tokens_and_sentences_are_counted():
    found = count_unread(tiny_tokenizer(), ["a man 🙂", "🙂", "ሰላም ልጅ", "the dog [UNK]", ""])
    assert (found.sentences, found.unknown, found.lost) == (5, 6, 3)  # an empty text is nothing too
    assert found.tokens == 3 + 1 + 2 + 2 + len("[ u ##n ##k ]".split()) and found.examples == ("🙂", "ሰላም", "ልጅ")
    assert found.alarming and "6 of 13 tokens (46.2%)" in str(found) and "look alike" in str(found)
    assert count_unread(bytes_of(), ["🙂 <end>"]).unknown == 0


def test_known_text_is_passed_over_and_much_of_it_is_sampled(monkeypatch):
    rows = [{"text": text} for text in SENTENCES]
    assert find_unread(tiny_tokenizer(), rows) is None
    monkeypatch.setattr("hf_focalcse.encoder.reading.LOOKED_AT", 3)
    found = find_unread(tiny_tokenizer(), [{"text": f"a {mark}"} for mark in np.repeat(["dog", "🙂"], 50)])
    assert (found.sentences, found.unknown) == (3, 2) and not str(found).count("look alike")


@pytest.mark.parametrize("marks", [("🙂", "🎸", "🐕"), ("สวัสดี", "ขอบคุณ", "ลาก่อน")])
def test_it_is_said_before_training(tmp_path, marks):
    model = load_model(str(save_tiny(tmp_path)), "cls")
    settings = parse(["--model_name_or_path", str(tmp_path), "--train_file", "x.txt"])
    rows = [{"text": mark} for mark in marks] + [{"text": SENTENCES[0]}]
    note = decide_unread(settings, model, rows).notes[-1]
    assert "3 of the sentences hold nothing that it knows" in note and repr(marks[0]) in note
    assert "take an encoder whose tokenizer reads this language or script" in note
    assert decide_unread(settings, model, rows[3:]) is settings
