"""How many tokens are read: a table of positions ends, positions that are computed go as far as the folder says."""

import json
import shutil

import numpy as np
import pytest
from tiny import record_mean, save_tiny

from hf_focalcse import AutoModelForFocalCL
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.publishing.formats import write_encoder, write_sentence_transformers

TEXTS = ["a man plays the guitar in the park " * 9, "a dog"]
COMPUTED = ("modernbert", "nomic_bert", "qwen3", "deberta-v2")  # of which some call a number of positions theirs


def found(folder, family="bert", further=(), **config):
    """A tiny encoder that pools by mean, with the files that sentence-transformers itself reads."""
    record_mean(save_tiny(folder, family, initializer_range=0.4, **config))
    kinds = ("Transformer", "Pooling", *further)
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "mean", "embedding_dimension": 16}')
    return folder


def limited(folder, family, limit, **config):
    found(folder, family, **config)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    return folder


def close(one, other):
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("family", COMPUTED)
def test_computed_positions_go_as_far_as_the_files_say(tmp_path, family):
    from sentence_transformers import SentenceTransformer

    own = {"position_biased_input": False} if family == "deberta-v2" else {}
    folder = limited(tmp_path / "base", family, 60, max_position_embeddings=20, **own)
    model = load_model(str(folder))
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert model.max_length() == model.positions == 60
    close(model.encode(TEXTS), expected)
    # in a checkpoint, in an export, and by the Auto class
    model.save_pretrained(tmp_path / "out"), model.tokenizer.save_pretrained(tmp_path / "out")
    stage = tmp_path / "stage"
    stage.mkdir()
    write_sentence_transformers(model, stage, write_encoder(model, stage))
    for place in ("out", "stage"):
        close(load_model(str(tmp_path / place)).encode(TEXTS), expected)
    close(SentenceTransformer(str(stage), device="cpu").encode(TEXTS), expected)
    close(AutoModelForFocalCL.from_pretrained(folder).encode(TEXTS), expected)
    # without that file the config counts
    (folder / "sentence_bert_config.json").unlink()
    assert load_model(str(folder)).max_length() == 20


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_a_table_of_positions_ends(tmp_path, family):
    model = load_model(str(limited(tmp_path, family, 60, max_position_embeddings=20)))
    assert model.max_length() == model.positions == 20 and model.encode(TEXTS).shape == (2, 16)


def test_an_encoder_without_a_number_of_positions_reads_what_its_tokenizer_says(tmp_path):
    folder = found(tmp_path / "base", "t5")
    lengths, notes = {}, {}
    for limit in (700, int(1e30)):
        shutil.copytree(folder, tmp_path / str(limit))
        file = tmp_path / str(limit) / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": limit}))
        model = load_model(str(tmp_path / str(limit)))
        lengths[limit], notes[limit] = model.max_length(), model.spec.notes
    assert list(lengths.values()) == [700, 512]
    assert notes[700] == [] and "nothing says how long a text may be, so it is cut at 512" in notes[int(1e30)][0]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "sentence_bert_config.json"])
def test_padding_that_shifts_positions_is_named(tmp_path, file):
    """Texts are padded on the right, where one alone has the vector that it has beside others."""
    folder = found(tmp_path)
    said = {"padding_side": "left"}
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | (said if "tokenizer" in file else {"tokenizer_args": said})))
    model = load_model(str(folder))
    assert any("pads on the left, which shifts" in note for note in model.spec.notes)
    close(model.encode(TEXTS)[1], model.encode(TEXTS[1]))


def test_the_auto_class_honours_what_the_files_say_of_a_text(tmp_path):
    """Prompts by name, lower-casing, length, normalisation and similarity: none is passed over."""
    from sentence_transformers import SentenceTransformer

    folder = found(tmp_path, further=["Normalize"])
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    said = {"prompts": {"query": "the man "}, "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    model, theirs = AutoModelForFocalCL.from_pretrained(folder), SentenceTransformer(str(folder), device="cpu")
    texts = [*TEXTS, "À DOG"]
    for encode in ("encode", "encode_query"):
        vectors, expected = getattr(model, encode)(texts), getattr(theirs, encode)(texts)
        close(vectors, expected)
        close(model.similarity(vectors, vectors), theirs.similarity(expected, expected))
    model.save_pretrained(tmp_path / "out"), model.tokenizer.save_pretrained(tmp_path / "out")
    close(load_model(str(tmp_path / "out")).encode_query(texts), theirs.encode_query(texts))
