"""Embedders made of decoders: last tokens whatever side is padded, training, resuming and export as for encoders."""

import json

import numpy as np
import pytest
import torch
from tiny import CONFIGS, FURTHER, SENTENCES, save_tiny, tiny_tokenizer
from tiny_training import make_trainer
from transformers import AutoModel, AutoModelForCausalLM, set_seed

from hf_focalcse.encoder.batches import padded_right
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.publishing.formats import write_encoder, write_sentence_transformers

POOLED = {"qwen3": "lasttoken", "gemma3_text": "mean"}
CLOSE = 1 - 1e-6


def embedder(folder, family, side="right", pooling=None, **config):
    """A tiny decoder with the files of sentence-transformers, as Qwen3-Embedding and EmbeddingGemma have them."""
    set_seed(0)
    made = FURTHER[family].__class__(**(FURTHER[family].to_dict() | {"initializer_range": 0.3} | config))
    AutoModel.from_config(made).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    tokenizer.save_pretrained(folder)
    package = "sentence_transformers.models."
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": package + kind}
        for i, (path, kind) in enumerate(modules.items())
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"pooling_mode": pooling or POOLED[family], "embedding_dimension": 16})
    )
    return folder


def lowest(one, other):
    return float((np.asarray(one) * np.asarray(other)).sum(1).min())


@pytest.mark.parametrize("family", POOLED)
def test_the_side_of_the_padding_changes_nothing(tmp_path, family):
    from sentence_transformers import SentenceTransformer

    found = {}
    for side in ("left", "right"):
        folder = embedder(tmp_path / side, family, side)
        model = load_model(str(folder))
        theirs = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
        found[side] = model.encode(SENTENCES)
        assert lowest(found[side], theirs) >= CLOSE
        tokenizer = tiny_tokenizer()
        tokenizer.padding_side = side  # and so do vectors of batches that others have padded
        batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        assert lowest(model(**batch).detach(), theirs) >= CLOSE
    np.testing.assert_array_equal(found["left"], found["right"])


def test_rows_padded_on_the_left_are_moved():
    ids = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 4], [1, 2, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
    moved, marks, types = padded_right(ids, mask, ids * 10)
    assert moved.tolist() == [[5, 6, 0, 0], [7, 8, 9, 4], [1, 2, 0, 0]] and torch.equal(types, moved * 10)
    assert marks.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert padded_right(ids[1:], mask[1:])[0] is not None and padded_right(ids[1:], mask[1:])[2] is None


@pytest.mark.parametrize("family", POOLED)
def test_it_trains_resumes_bit_for_bit_and_is_exported(tmp_path, family):
    from sentence_transformers import SentenceTransformer

    base = embedder(tmp_path / "base", family)
    settings = {"learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 2, "save_only_model": False}

    def train(folder, resume=None):
        trainer = make_trainer(tmp_path / folder, model=load_model(str(base), dropout=0.1), **settings)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train("whole")
    again = train("again", str(tmp_path / "whole/out/checkpoint-2"))
    before, one, other = (model.state_dict() for model in (load_model(str(base)), whole.encoder, again.encoder))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert any(not torch.equal(before[key], one[key]) for key in before)
    whole.save_whole(tmp_path / "saved")
    model = load_model(str(tmp_path / "saved"))
    stage = tmp_path / "stage"
    stage.mkdir()
    write_sentence_transformers(model, stage, write_encoder(model, stage))
    theirs = SentenceTransformer(str(stage), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(whole.encoder.encode(SENTENCES), model.encode(SENTENCES), atol=1e-6)
    assert lowest(model.encode(SENTENCES), theirs) >= CLOSE


@pytest.mark.parametrize("family", ["qwen3", "opt"])
def test_a_text_without_a_token_has_the_zero_vector_whatever_is_beside_it(tmp_path, family):
    """An empty text, where no special token is added: in sentence-transformers too."""
    folder = embedder(tmp_path, family, pooling="lasttoken")
    content = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    model = load_model(str(folder))
    assert not model.tokenizer("")["input_ids"]
    found = model.encode(["", *SENTENCES])
    assert not found[0].any() and not model.encode([""]).any() and np.isfinite(found).all()
    assert lowest(found[1:], model.encode(SENTENCES)) >= CLOSE


def test_weights_with_a_language_model_around_them_are_read(tmp_path):
    folder = embedder(tmp_path, "qwen3")
    expected = load_model(str(folder)).encode(SENTENCES)
    whole = AutoModelForCausalLM.from_pretrained(folder)  # the head is drawn, what it stands on is not
    whole.save_pretrained(folder)
    np.testing.assert_array_equal(load_model(str(folder)).encode(SENTENCES), expected)


def test_a_first_token_that_reads_no_other_is_not_pooled(tmp_path):
    with pytest.raises(UserError, match="read only those before them, so that its first token"):
        load_model(str(embedder(tmp_path / "causal", "qwen3", pooling="cls")))
    assert load_model(str(embedder(tmp_path / "both", "qwen3", pooling="cls", is_causal=False))).spec.notes == []
    assert load_model(str(embedder(tmp_path / "gemma", "gemma3_text", pooling="cls"))).spec.notes == []
    decoder = save_tiny(tmp_path / "bert", is_decoder=True)
    assert load_model(str(decoder), "mean").spec.notes == [
        "is_decoder in its config.json lets a token read only those before it"
    ]
    with pytest.raises(UserError, match=r"\(is_decoder in its config.json\), so that .*--pooler last or"):
        load_model(str(decoder), "cls")


def test_code_that_a_decoder_was_made_for_may_read_both_ways(tmp_path):
    """Its weights fit the class of transformers, so that nothing but auto_map tells."""
    with pytest.raises(UserError, match=r"may let tokens read those behind them, as transformers' qwen3 does not"):
        load_model(str(embedder(tmp_path / "qwen3", "qwen3", auto_map={"AutoModel": "modeling_own.Model"})))
    folder = save_tiny(tmp_path / "bert", auto_map={"AutoModel": "modeling_own.Model"})
    assert load_model(str(folder), "mean").spec.notes == [
        "its own code (auto_map) is not run: BertModel of transformers reads it"
    ]


def test_padding_before_a_text_is_said_where_it_shifts_positions(tmp_path):
    for family, said in (("bert", True), ("modernbert", False), ("roberta", False), ("distilbert", True)):
        folder = save_tiny(tmp_path / family, family)
        config = json.loads((folder / "tokenizer_config.json").read_text()) | {"padding_side": "left"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        notes = load_model(str(folder), "mean").spec.notes
        assert any("pads on the left" in note for note in notes) == said, family
    assert CONFIGS["distilbert"].max_position_embeddings
