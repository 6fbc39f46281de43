"""Heads: round trips with plain AutoModel in a fresh process, chunks against whole, encode against one at a time."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import CONFIGS, FURTHER, SENTENCES, plain_load, save_tiny
from transformers import set_seed

from hf_focalcse.data.views import tokenize
from hf_focalcse.encoder.auto import MODELS, AutoModelForFocalCL
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.poolers import POOLERS
from hf_focalcse.encoder.saving import HEAD_FILE
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
    assert {config.model_type for config in MODELS} == {*FAMILIES, *FURTHER}
    for family, config in CONFIGS.items():
        assert isinstance(AutoModelForFocalCL.from_config(copy.deepcopy(config)), MODELS[type(config)]), family


# ---- chunks, order, views


@pytest.mark.parametrize("family", ["albert", "bert", "mpnet", "modernbert"])
@pytest.mark.parametrize("pooler", [name for name, row in POOLERS.items() if not row.marked])
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


def test_unused_projection_gets_no_gradient(tmp_path):
    model = model_of(tmp_path, pooler="mean")
    assert not any(p.requires_grad for p in model.projection_linear.parameters())
    model.set_pooling("cls")
    assert all(p.requires_grad for p in model.parameters())
