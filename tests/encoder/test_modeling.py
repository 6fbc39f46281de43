"""Heads: round trips with plain AutoModel in a fresh process, chunks against whole, pooling records, refusals."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CONFIGS, SENTENCES, plain_load, save_tiny, tiny_tokenizer
from transformers import AutoConfig, AutoModel, GPT2Config, set_seed

from hf_focalcse.data.views import tokenize
from hf_focalcse.encoder.auto import MODELS, AutoModelForFocalCL
from hf_focalcse.encoder.head import HEAD_FILE
from hf_focalcse.encoder.loading import load_model, require_projection
from hf_focalcse.encoder.poolers import POOLERS
from hf_focalcse.errors import UserError
from hf_focalcse.losses import Pairs, build_loss

FAMILIES = list(CONFIGS)


def model_of(folder: Path, family: str = "bert", **kwargs):
    model = load_model(str(save_tiny(folder, family)), kwargs.pop("pooler", "cls"), **kwargs)
    set_seed(1)
    model.reset_projection()
    return model


def embed(model) -> torch.Tensor:
    """[CLS] as ours embeds it, all sentences in one padded batch as a stranger would send them."""
    batch = tokenize(model.tokenizer, SENTENCES, 64)
    with torch.no_grad():
        return model.eval().embed(batch["input_ids"], batch["attention_mask"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{family: (model, folder)} and what a fresh process without this package made of the folders."""
    models = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        model = model_of(folder / "base", family)
        model.save_pretrained(folder / "saved")
        model.tokenizer.save_pretrained(folder / "saved")
        models[family] = model, folder / "saved"
    return models, plain_load(*(folder for _, folder in models.values()))


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_automodel_loads_it_without_a_word_and_with_the_same_vectors(saved, family):
    model, folder = saved[0][family]
    answer = saved[1][str(folder)]
    assert answer["missing"] == answer["unexpected"] == []
    assert answer["said"] == ""
    torch.set_num_threads(1)
    assert torch.equal(embed(model), torch.tensor(answer["cls"]))
    if model.encoder_has_pooler:
        model.set_pooling("cls", "always")
        assert torch.equal(embed(model), torch.tensor(answer["pooled"]))
        model.set_pooling("cls", "training")


@pytest.mark.parametrize("family", FAMILIES)
def test_comes_back_into_our_class_with_the_projection_bit_equal(saved, family):
    model, folder = saved[0][family]
    for back in (AutoModelForFocalCL.from_pretrained(folder), type(model).from_pretrained(folder)):
        assert type(back) is type(model)
        for name, value in model.state_dict().items():
            assert torch.equal(back.state_dict()[name], value), name
    assert (folder / HEAD_FILE).exists() is not model.encoder_has_pooler


def test_a_pooler_that_nobody_chose_is_said(saved, tmp_path, caplog):
    plain = save_tiny(tmp_path)
    AutoModelForFocalCL.from_pretrained(plain)
    assert f"nothing in {plain} says how it pools: cls is taken, projection use 'training'" in caplog.text
    caplog.clear()
    AutoModelForFocalCL.from_pretrained(saved[0]["bert"][1])
    load_model(str(plain), "mean")
    assert not caplog.records


def test_a_stranger_sees_a_wrong_vector_when_the_head_is_lost(saved):
    """The comparison above can fail: another projection gives another pooled vector."""
    model, folder = saved[0]["bert"]
    model.set_pooling("cls", "always")
    before = embed(model)
    weight = model.projection_linear.weight.clone()
    model.reset_projection()
    assert not torch.equal(embed(model), before)
    with torch.no_grad():
        model.projection_linear.weight.copy_(weight)
    model.set_pooling("cls", "training")


def test_every_family_is_registered():
    assert {config.model_type for config in MODELS} == set(FAMILIES)
    for family, config in CONFIGS.items():
        assert isinstance(AutoModelForFocalCL.from_config(copy.deepcopy(config)), MODELS[type(config)]), family


# ---- chunks, order, views


@pytest.mark.parametrize("family", ["albert", "bert", "mpnet", "modernbert"])
@pytest.mark.parametrize("pooler", list(POOLERS))
def test_chunks_give_the_gradient_of_one_padded_batch(tmp_path, family, pooler):
    model = model_of(tmp_path, family, pooler=pooler, dropout=0.0).train().double()
    batch = tokenize(model.tokenizer, SENTENCES, 32)
    ids, mask = (batch[k].unsqueeze(1).repeat(1, 2, 1) for k in ("input_ids", "attention_mask"))
    direction = torch.randn(len(SENTENCES), 2, model.config.hidden_size, dtype=torch.float64)

    def gradients(vectors):
        model.zero_grad()
        (vectors * direction).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    model.packing = False
    whole = model.embed(ids.flatten(0, 1), mask.flatten(0, 1)).unflatten(0, (-1, 2))  # the slow twin: no groups
    model.packing = True
    expected = gradients(whole)
    for chunk_size in (None, 1, 3, 5, 100):
        model.chunk_size = chunk_size
        vectors = model(ids, mask)
        torch.testing.assert_close(vectors, whole)
        found = gradients(vectors)
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], msg=name)


def test_chunks_of_64_give_loss_and_gradient_of_a_batch_of_256(tmp_path):
    """With dropout on: unchunked groups have 64 rows too and draw the same masks."""
    model = model_of(tmp_path, dropout=0.1).train()
    texts = [" ".join(SENTENCES[i % len(SENTENCES)].split()[: 1 + i % 7]) + f" {i}" for i in range(256)]
    batch = tokenize(model.tokenizer, texts, 32)
    ids, mask = (batch[k].unsqueeze(1).repeat(1, 2, 1) for k in ("input_ids", "attention_mask"))
    found = []
    for chunk_size in (None, 64):
        model.chunk_size = chunk_size
        model.zero_grad()
        torch.manual_seed(0)
        z = model(ids, mask)
        loss = build_loss("focal")(Pairs(z[:, 0], z[:, 1], torch.arange(256)))
        loss.backward()
        found.append(
            (loss.reshape(1), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        )
    for whole, chunked in zip(*found, strict=True):
        assert (whole - chunked).norm() <= 1e-5 * whole.norm()


def test_chunks_replay_their_dropout(tmp_path):
    model = model_of(tmp_path, dropout=0.5).train()
    batch = tokenize(model.tokenizer, SENTENCES, 32)
    ids, mask = (batch[k].unsqueeze(1).repeat(1, 2, 1) for k in ("input_ids", "attention_mask"))

    def run(checkpointed: bool):
        torch.manual_seed(3)
        model.zero_grad()
        model.chunk_size = 4
        if checkpointed:
            vectors = model(ids, mask)
        else:  # the same groups without recomputation
            lengths = mask.flatten(0, 1).sum(1)
            order = torch.argsort(lengths, descending=True, stable=True)
            parts = [
                model.embed(ids.flatten(0, 1)[rows, : lengths[rows[0]]], mask.flatten(0, 1)[rows, : lengths[rows[0]]])
                for rows in order.split(4)
            ]
            vectors = torch.cat(parts)[torch.argsort(order)].unflatten(0, (-1, 2))
        vectors.square().sum().backward()
        return vectors.detach(), model.encoder.embeddings.word_embeddings.weight.grad.clone()

    for a, b in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_the_two_views_of_a_sentence_differ_in_training_only(tmp_path):
    model = model_of(tmp_path)
    batch = tokenize(model.tokenizer, SENTENCES, 32)
    ids, mask = (batch[k].unsqueeze(1).repeat(1, 2, 1) for k in ("input_ids", "attention_mask"))
    with torch.no_grad():
        vectors = model.train()(ids, mask)
        assert (vectors[:, 0] - vectors[:, 1]).abs().amax(1).min() > 1e-3
        vectors = model.eval()(ids, mask)
        torch.testing.assert_close(vectors[:, 0], vectors[:, 1])


def test_training_passes_the_projection_and_embedding_does_not(tmp_path):
    model = model_of(tmp_path, dropout=0.0)
    batch = tokenize(model.tokenizer, SENTENCES, 32)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        raw = model.encoder(input_ids=ids, attention_mask=mask)
        torch.testing.assert_close(model.train()(ids, mask), raw.pooler_output)
        torch.testing.assert_close(model.eval()(ids, mask), raw.last_hidden_state[:, 0])
        model.set_pooling("cls", "always")
        torch.testing.assert_close(model.eval()(ids, mask), raw.pooler_output)


# ---- encode


def one_at_a_time(model, texts):
    """What `encode` must give, without batches, padding or sorting."""
    rows = [tokenize(model.tokenizer, [text], model.max_length()) for text in texts]
    with torch.no_grad():
        return np.concatenate([model.eval().embed(row["input_ids"], row["attention_mask"]).numpy() for row in rows])


@pytest.mark.parametrize("together", [3, 4096])
def test_encode_keeps_the_order_and_does_not_depend_on_the_batch(tmp_path, monkeypatch, together):
    model = model_of(tmp_path)
    monkeypatch.setattr("hf_focalcse.encoder.batches.TOKENISED_TOGETHER", together)
    alone = one_at_a_time(model, SENTENCES)
    for batch_size in (1, 3, 64):
        np.testing.assert_allclose(model.encode(SENTENCES, batch_size=batch_size), alone, atol=1e-6)
    assert alone.dtype == np.float32 and model.encode([]).shape == (0, 16)
    model.train()
    model.encode(SENTENCES)
    assert model.training


def test_encode_batches_by_tokens_not_by_characters(tmp_path, monkeypatch):
    """Of four texts those with many tokens share a batch, though they are the shorter ones in characters."""
    model = model_of(tmp_path)
    seen = []
    embed = model.embed
    monkeypatch.setattr(
        model, "embed", lambda ids, mask, *rest: seen.append(mask.sum(1).tolist()) or embed(ids, mask, *rest)
    )
    model.encode(["quickly people", "a a a a a", "quickly  people", "i i i i i i"], batch_size=2)
    assert seen == [[8, 7], [4, 4]]


@pytest.mark.parametrize("family", FAMILIES)
def test_encode_in_bfloat16_is_near_and_leaves_the_weights_alone(tmp_path, family):
    model = model_of(tmp_path, family)
    exact, near = model.encode(SENTENCES), model.encode(SENTENCES, bf16=True)
    assert near.dtype == np.float32 and model.dtype == torch.float32
    assert 0 < np.abs(near - exact).max() < 0.05 * np.abs(exact).max()
    np.testing.assert_array_equal(model.encode(SENTENCES), exact)


@pytest.mark.parametrize("family", FAMILIES)
def test_encode_cuts_at_max_length(tmp_path, family):
    model = model_of(tmp_path, family)
    if family in ("roberta", "xlm-roberta", "mpnet"):  # 66 positions, of which those up to the padding index are lost
        model.tokenizer.model_max_length = 1000
        assert model.max_length() == 66 - 1 - {"mpnet": 1}.get(family, 0)
    long = "dog " * 500
    np.testing.assert_allclose(model.encode([long]), model.encode(["dog " * (model.max_length() - 2)]), atol=1e-6)
    np.testing.assert_allclose(model.encode([long], max_length=4), model.encode(["dog dog"]), atol=1e-6)


# ---- what the checkpoint says of itself


def test_pooling_is_recorded_and_used_again(tmp_path):
    model = model_of(tmp_path / "base", pooler="avg")
    model.save_pretrained(tmp_path / "saved"), model.tokenizer.save_pretrained(tmp_path / "saved")
    assert AutoConfig.from_pretrained(tmp_path / "saved").focal_cl == {"pooler": "mean", "projection": "none"}
    back = load_model(str(tmp_path / "saved"))
    assert back.pooler_name == "mean"
    np.testing.assert_array_equal(back.encode(SENTENCES), model.encode(SENTENCES))
    assert load_model(str(tmp_path / "saved"), "max").pooler_name == "max"


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls_before_pooler"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": "lasttoken"}, "pools as"),
    ],
)
def test_sentence_transformers_pooling_is_read(tmp_path, pooling, expected):
    folder = save_tiny(tmp_path)
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if expected in POOLERS:
        assert load_model(str(folder)).pooler_name == expected
    else:
        with pytest.raises(UserError, match=expected):
            load_model(str(folder))


def test_dropout_is_set_under_every_familys_names(tmp_path):
    for family in FAMILIES:
        model = load_model(str(save_tiny(tmp_path / family, family)), "cls", dropout=0.25)
        assert set(model.dropout_rates().values()) == {0.25}, family
        rates = {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)}
        assert (rates <= {0.25, 0.1} and 0.25 in rates) or family == "modernbert", (family, rates)


def test_half_precision_checkpoints_are_trained_in_float32(tmp_path):
    folder = save_tiny(tmp_path)
    AutoModel.from_pretrained(folder, dtype=torch.float16).save_pretrained(folder)
    assert {v.dtype for v in load_file(folder / "model.safetensors").values()} == {torch.float16}
    assert {p.dtype for p in load_model(str(folder), "cls").parameters()} == {torch.float32}


def test_unused_projection_gets_no_gradient(tmp_path):
    model = model_of(tmp_path, pooler="mean")
    assert not any(p.requires_grad for p in model.projection_linear.parameters())
    model.set_pooling("cls")
    assert all(p.requires_grad for p in model.parameters())


# ---- refusals


def test_refusals(tmp_path):
    bert = save_tiny(tmp_path / "bert")
    with pytest.raises(UserError, match="no model folder './nowhere'"):
        load_model("./nowhere")
    with pytest.raises(UserError, match="has no config.json"):
        load_model(str(tmp_path))
    with pytest.raises(UserError, match="says how it pools; choose with --pooler"):
        load_model(str(bert))
    with pytest.raises(UserError, match="no pooler 'clss', did you mean 'cls'"):
        load_model(str(bert), "clss")
    with pytest.raises(UserError, match="dropout is 1.5"):
        load_model(str(bert), "cls", dropout=1.5)
    with pytest.raises(UserError, match="has no projection"):
        load_model(str(bert), "mean", "always")
    GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(UserError, match=r"type 'gpt2'; supported are: albert, bert, .*xlm-roberta"):
        load_model(str(tmp_path / "gpt2"), "cls")


def test_damaged_and_pickled_weights_are_refused(tmp_path):
    folder = save_tiny(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layer.1" not in k}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="lacks 16 weights of BertForFocalCL"):
        load_model(str(folder), "cls")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="could not be loaded"):
        load_model(str(folder), "cls")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickled ones are never opened"):
        load_model(str(folder), "cls")


def test_a_projection_that_is_not_there_is_not_invented(tmp_path):
    set_seed(0)
    AutoModel.from_config(CONFIGS["bert"], add_pooling_layer=False).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = load_model(str(tmp_path), "cls", "always")
    with pytest.raises(UserError, match="has no projection weights"):
        require_projection(model, "x")
    require_projection(load_model(str(tmp_path), "cls", "training"), "x")
    distil = load_model(str(save_tiny(tmp_path / "d", "distilbert")), "cls", "always")
    with pytest.raises(UserError, match="has no projection weights"):
        require_projection(distil, "x")


def test_a_checkpoint_without_its_tokenizer_is_refused(tmp_path):
    """transformers would make an empty one in its place, and every score would be noise."""
    for family in FAMILIES:
        folder = save_tiny(tmp_path / family, family)
        for file in folder.glob("tokenizer*"):
            file.unlink()
        with pytest.raises(UserError, match="there is no tokenizer in"):
            load_model(str(folder), "cls")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="tokenizer of .* is damaged"):
        load_model(str(folder), "cls")


def test_parts_of_different_models_are_refused(tmp_path):
    folder = save_tiny(tmp_path / "small", vocab_size=20)
    with pytest.raises(UserError, match="ids up to .*, its encoder only 20 embeddings"):
        load_model(str(folder), "cls")
    for change, message in (
        ({"num_hidden_layers": 1}, "16 weights that its config.json has no layer for"),
        ({"hidden_size": 32}, "have other shapes than its config.json says"),
        ({"focal_cl": "cls"}, "focal_cl .* must be a mapping with pooler and projection, not 'cls'"),
        ({"focal_cl": {"pooler": 3}}, "must be a mapping"),
        ({"focal_cl": {"pooler": "clss", "projection": "none"}}, "no pooler 'clss', did you mean 'cls'"),
        ({"model_type": None}, "config.json of .* cannot be used"),
    ):
        folder = save_tiny(tmp_path / "edited")
        config = json.loads((folder / "config.json").read_text()) | change
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        with pytest.raises(UserError, match=message):
            load_model(str(folder), None if "focal_cl" in change else "cls")
    (folder := save_tiny(tmp_path / "modules")).joinpath("modules.json").write_text("[")
    with pytest.raises(UserError, match=r"modules.json of .* is no JSON"):
        load_model(str(folder))
    with pytest.raises(UserError, match="only a Hub id has them"):
        load_model(str(folder), "cls", revision="abc")


def test_encode_takes_a_list(tmp_path):
    model = model_of(tmp_path)
    np.testing.assert_array_equal(model.encode(iter(SENTENCES)), model.encode(np.array(SENTENCES)))
    with pytest.raises(UserError, match="a list of sentences, not one string"):
        model.encode("a man plays")
