"""TSDAE: golden values, the decoder against transformers' own or layers run by hand, what is deleted and refused."""

import pytest
import torch
from family import objective_trainer
from golden import case_of, check
from safetensors.torch import load_file
from tiny import CONFIGS, SENTENCES, VOCABULARY, save_tiny
from transformers import AutoModelForCausalLM

from hf_focalcse import load_model
from hf_focalcse.data.views import Views
from hf_focalcse.errors import UserError
from hf_focalcse.objectives.decoder import CrossAttention, causal_mask
from hf_focalcse.objectives.masking import cross_entropy_sum
from hf_focalcse.objectives.tsdae import TSDAE, compacted, continuing, kept_words, words_of

OF_TRANSFORMERS = ("bert", "roberta", "xlm-roberta", "electra")
BY_HAND = ("distilbert", "mpnet", "modernbert")


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "tsdae", number)
    uniform = inputs["uniform"].unsqueeze(0)
    every, places = torch.ones_like(uniform, dtype=torch.bool), torch.arange(uniform.shape[1]).unsqueeze(0)
    fallback = torch.tensor([inputs["fallback_index"]])
    kept = kept_words(uniform, settings["deletion_ratio"], places, every, fallback)[0]
    assert [word for word, stays in zip(inputs["words"], kept, strict=True) if stays] == expected["kept_words"]

    ids, vectors, weights = inputs["token_ids"], inputs["s"].requires_grad_(), inputs["weights"]
    size, pad = vectors.shape[1], settings["pad_id"]
    config = type("Config", (), {"hidden_size": size, "num_attention_heads": 1})()
    cross = CrossAttention(config, (0.0, 0.0), normed=False).double()
    cross.value.weight.data, cross.output.weight.data = weights["cross_v"].T, weights["cross_o"].T
    read, labels = ids[:, :-1], ids[:, 1:]
    x = inputs["embedding"][read] + inputs["position"][: read.shape[1]]
    scores = (x @ weights["q"]) @ (x @ weights["k"]).transpose(1, 2) / size**0.5
    seen = (scores + causal_mask(config, read.shape[1], vectors)[:, 0]).softmax(-1)
    states = cross(x + seen @ (x @ weights["v"]) @ weights["o"], vectors)
    logits = states @ inputs["embedding"].T + inputs["output_bias"]
    wanted = labels != pad
    each = [
        cross_entropy_sum(*of) for of in zip(logits[wanted].unsqueeze(1), labels[wanted].unsqueeze(1), strict=True)
    ]
    check(torch.stack(each), expected["token_losses"])
    value = cross_entropy_sum(logits[wanted], labels[wanted]) / wanted.sum()
    check(value, expected["loss"])
    assert abs(value - expected["mean_of_sentence_means"]) > 1e-6 or len(set(wanted.sum(1).tolist())) == 1
    value.backward()
    check(vectors.grad, expected["grad_s"])


def attached(folder, family="bert", **settings):
    save_tiny(folder, family, initializer_range=0.3)
    model = load_model(str(folder), "cls", default_pooler=True).double().eval()
    torch.manual_seed(1)
    objective = TSDAE(**settings)
    objective.attach(model)
    batch = Views(model.tokenizer, 16, 1)([{"text": text} for text in SENTENCES]) | {"seed": 5}
    return model, objective.eval(), batch


def by_transformers(model, objective, ids, vector):
    """(L, D) of one sentence by the decoder class of transformers."""
    config = type(model.config)(**(model.config.to_diff_dict() | {"is_decoder": True, "add_cross_attention": True}))
    whole = AutoModelForCausalLM.from_config(config).double().eval()
    body = getattr(whole, whole.base_model_prefix)
    own = dict(body.named_parameters())
    tied = dict(model.encoder.named_parameters())
    for place, cross in enumerate(objective.decoder.cross):
        start = f"encoder.layer.{place}.crossattention."
        for there, here in (
            ("self.value", cross.value),
            ("output.dense", cross.output),
            ("output.LayerNorm", cross.norm),
        ):
            tied |= {f"{start}{there}.{kind}": parameter for kind, parameter in here.named_parameters()}
    found = {name: tied.get(name, parameter) for name, parameter in own.items()}
    assert {name for name in own if name not in tied} <= {name for name in own if ".query." in name or ".key." in name}
    vectors = {"encoder_hidden_states": vector.view(1, 1, -1), "input_ids": ids.unsqueeze(0), "use_cache": False}
    return torch.func.functional_call(body, found, kwargs=vectors).last_hidden_state[0]


def by_hand(model, objective, ids, vector):
    """(L, D) of one sentence, by the parts of each layer."""
    encoder, crosses = model.encoder, objective.decoder.cross
    mask = causal_mask(model.config, len(ids), vector.unsqueeze(0))
    states = encoder.embeddings(input_ids=ids.unsqueeze(0))
    kind = model.config.model_type
    layers = {"distilbert": "transformer.layer", "mpnet": "encoder.layer", "modernbert": "layers"}[kind]
    for layer, cross in zip(encoder.get_submodule(layers), crosses, strict=True):
        told = cross.output(cross.value(vector))
        if kind == "distilbert":
            states = layer.sa_layer_norm(layer.attention(states, attention_mask=mask)[0] + states)
            states = cross.norm(states + told)
            states = layer.output_layer_norm(layer.ffn(states) + states)
        elif kind == "mpnet":
            near = encoder.encoder.compute_position_bias(states)
            states = cross.norm(layer.attention(states, mask, near)[0] + told)
            states = layer.output(layer.intermediate(states), states)
        else:
            places = torch.arange(len(ids)).unsqueeze(0)
            turned = encoder.rotary_emb(states, places, layer.attention_type)
            of = {"position_embeddings": turned, "attention_mask": mask[layer.attention_type]}
            states = states + layer.attn(layer.attn_norm(states), **of)[0] + told
            states = states + layer.mlp(layer.mlp_norm(states))
    return (encoder.final_norm(states) if kind == "modernbert" else states)[0]


@pytest.mark.parametrize("family", [*OF_TRANSFORMERS, *BY_HAND])
def test_value_and_gradient_equal_a_plain_decoder(tmp_path, family):
    """Sentence by sentence, token by token."""
    model, objective, batch = attached(tmp_path / "tiny", family)
    value, pairs = objective.loss(model, batch)
    assert pairs is None
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    left = objective.left(ids, mask, batch["text_ids"], 5)
    states_of = by_transformers if family in OF_TRANSFORMERS else by_hand
    total, count = 0.0, 0
    for row, kept, length in zip(ids, left, mask.sum(1).tolist(), strict=True):
        some = row[kept].view(1, 1, -1)
        vector = model(input_ids=some, attention_mask=torch.ones_like(some))[0, 0]
        logits = objective.head(states_of(model, objective, row[: length - 1], vector))
        for place in range(length - 1):
            total, count = total - logits[place].log_softmax(0)[row[place + 1]], count + 1
    assert count == mask.sum() - len(ids)
    torch.testing.assert_close(value, total / count, rtol=0, atol=1e-10)
    trained = {n: p for part in (model, objective) for n, p in part.named_parameters() if p.requires_grad}
    gradients = [torch.autograd.grad(of, trained.values(), allow_unused=True) for of in (value, total / count)]
    for name, found, expected in zip(trained, *gradients, strict=True):
        assert found is not None, name
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10, msg=name)


def test_no_token_reads_a_later_one(tmp_path):
    model, objective, batch = attached(tmp_path / "tiny")
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    vectors = torch.randn(len(ids), 16, dtype=torch.float64)
    before = objective.decoder(ids, mask, vectors)
    changed = ids.clone()
    changed[:, 5:] = 7
    after = objective.decoder(changed, mask, vectors)
    assert after[:, :5].allclose(before[:, :5], atol=1e-12) and not after[:, 5:].allclose(before[:, 5:])
    assert not objective.decoder(ids, mask, vectors.flip(0)).allclose(before)  # the vector is read
    plain = model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    assert model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.equal(plain)  # nothing stays behind


def test_one_step_moves_what_is_trained_and_chunks_change_nothing(tmp_path):
    base = str(save_tiny(tmp_path / "base"))

    def gradients(chunk):
        trainer = objective_trainer(
            base, tmp_path / "run", "tsdae", dropout=0.0, double=True, max_steps=1, optim="sgd", learning_rate=1.0,
            max_grad_norm=0.0, per_device_train_batch_size=8,
        )  # fmt: skip
        trainer.model.chunk_size = chunk
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        trainer.save_whole(tmp_path / "saved")
        return {name: before[name] - p.detach() for name, p in trainer.model.named_parameters()}

    one, chunked = gradients(None), gradients(3)
    still = [name for name, moved in one.items() if not moved.any() and "key.bias" not in name]
    assert still == [name for name in one if ".pooler." in name]  # frozen: nothing reads it
    for name in one:
        torch.testing.assert_close(chunked[name], one[name], rtol=0, atol=1e-12, msg=name)
    names = {name.removeprefix("bert.") for name in load_file(tmp_path / "saved/model.safetensors")}
    assert names == set(load_file(f"{base}/model.safetensors"))


def test_what_is_deleted(tmp_path):
    model, objective, batch = attached(tmp_path / "tiny")
    ids, mask, texts = batch["input_ids"][:, 0], batch["attention_mask"][:, 0], batch["text_ids"]
    left = objective.left(ids, mask, texts, 5)
    special = objective.special[ids] & (mask == 1)
    assert (left & special).equal(special) and not (left & (mask == 0)).any()
    assert ((left & ~special).sum(1) >= 1).all()  # a word stays
    assert objective.left(ids[2:4], mask[2:4], texts[2:4], 5).equal(left[2:4])  # whatever lies beside it
    assert not objective.left(ids, mask, texts, 6).equal(left)
    shares = torch.cat([objective.left(ids, mask, texts, seed)[mask == 1] for seed in range(300)])
    ordinary = torch.cat([(~special)[mask == 1]] * 300)
    assert 0.55 < 1 - shares[ordinary].float().mean() < 0.6  # 0.6, but for the words that stay in any case
    some, short = compacted(ids, left, 0)
    for row, kept, found, length in zip(ids, left, some, short.sum(1), strict=True):
        assert found[:length].tolist() == row[kept].tolist() and not found[length:].any()


def test_words_are_deleted_as_a_whole(tmp_path):
    model, objective, _ = attached(tmp_path / "tiny")
    batch = Views(model.tokenizer, 16, 1)([{"text": "xyz dog qrs"}])
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    ordinary = ~objective.special[ids]
    words = words_of(objective.continues[ids], ordinary)
    assert words.tolist() == [[0, 1, 1, 1, 4, 5, 5, 5, 8]]
    for seed in range(20):
        left = objective.left(ids, mask, batch["text_ids"], seed)[0].tolist()
        assert len(set(left[1:4])) == len(set(left[5:8])) == 1
    _, pieces, _ = attached(tmp_path / "other", delete_tokens=True)
    assert not pieces.continues.any()

    class Marked:
        names = ("<s>", "Ġthe", "se", "Ġdog")

        def get_vocab(self):
            return {name: i for i, name in enumerate(self.names)}

    assert continuing(Marked(), 6).tolist() == [True, False, True, False, False, False]
    inside = words_of(torch.tensor([[True, True, True, False]]), torch.tensor([[False, True, True, True]]))
    assert inside.tolist() == [[0, 1, 1, 3]]  # the first word has no mark, and does not go on with <s>
    Marked.names = ("a", "b")
    assert not continuing(Marked(), 2).any() and len(VOCABULARY) > 2


def test_what_does_not_go_is_refused(tmp_path):
    for ratio in (0.0, 1.0):
        with pytest.raises(UserError, match=f"deletion_ratio is {ratio}; it must be above 0 and below 1"):
            TSDAE(deletion_ratio=ratio)
    with pytest.raises(UserError, match="a albert encoder cannot be its own decoder here; use one of Bert, Camem"):
        attached(tmp_path / "albert", "albert")
    base = str(save_tiny(tmp_path / "base"))
    with pytest.raises(UserError, match="--objective tsdae does not go with activation checkpointing"):
        objective_trainer(base, tmp_path / "run", "tsdae", gradient_checkpointing=True)
    wide = load_model(base, "mean+max", default_pooler=True)
    with pytest.raises(UserError, match="this encoder embeds in 32; use a pooler of one layer"):
        TSDAE().attach(wide)
    assert set(OF_TRANSFORMERS + BY_HAND) == CONFIGS.keys() - {"albert"}
