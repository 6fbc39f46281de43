"""Masked language modelling: golden values, a loop twin on tiny encoders of every family, and what is drawn."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from family import objective_trainer
from golden import case_of, check
from safetensors.torch import load_file
from tiny import CONFIGS, SENTENCES, save_tiny, tiny_tokenizer
from transformers import AutoModelForMaskedLM

from hf_focalcse import build_loss, load_model
from hf_focalcse.data.views import Views
from hf_focalcse.errors import UserError
from hf_focalcse.objectives import Contrastive
from hf_focalcse.objectives.masking import Draws, by_words, draw, hide
from hf_focalcse.objectives.mlm import MaskedLanguageModel


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "mlm", number)
    draws = Draws(inputs["u_mask"], inputs["u_replace"], inputs["u_random"], inputs["random_ids"])
    ids, special = inputs["token_ids"], inputs["special"].bool()
    masked, labels = hide(ids, special, draws, settings["probability"], settings["mask_id"])
    assert masked.tolist() == expected["masked_ids"] and labels.tolist() == expected["labels"]
    logits = inputs["logits"].requires_grad_()
    wanted = labels != -100
    assert wanted.sum() == expected["n_masked"]
    value = F.cross_entropy(logits[wanted], labels[wanted], reduction="sum") / wanted.sum()
    check(value, expected["loss"])
    value.backward()
    check(logits.grad, expected["grad_logits"])


def batch_of(model, seed=5):
    return Views(model.tokenizer, 16, 1)([{"text": text} for text in SENTENCES]) | {"seed": seed}


def attached(folder, family="bert", **settings):
    save_tiny(folder, family)
    model = load_model(str(folder), "cls", default_pooler=True).eval()
    objective = MaskedLanguageModel(**{"mask_probability": 0.5} | settings)
    objective.attach(model)
    return model, objective


@pytest.mark.parametrize("family", CONFIGS)
def test_value_and_gradient_equal_a_plain_masked_language_model(tmp_path, family):
    """Sentence by sentence, by the class of transformers with its weights tied as they are there."""
    model, objective = attached(tmp_path / "tiny", family)
    batch = batch_of(model)
    value, pairs = objective.loss(None, batch)
    assert pairs is None
    value.backward()
    plain = AutoModelForMaskedLM.from_config(type(model.config)(**model.config.to_diff_dict())).eval()
    getattr(plain, plain.base_model_prefix).load_state_dict(
        {k: v for k, v in model.encoder.state_dict().items() if "pooler" not in k}, strict=False
    )
    own = objective.tokens.head.parts.state_dict()
    missing, unexpected = plain.load_state_dict(own, strict=False)
    assert not unexpected
    plain.tie_weights()
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    draws = draw(5, batch["text_ids"], mask, model.config.vocab_size)
    tokens = objective.tokens
    draws = replace(draws, chosen=by_words(draws.chosen, tokens.continues[ids]))
    hidden, labels = hide(ids, tokens.special[ids] | (mask == 0), draws, 0.5, tokens.mask_id)
    total, count = 0.0, 0
    for i in range(len(ids)):
        logits = plain(input_ids=hidden[i : i + 1], attention_mask=mask[i : i + 1]).logits[0]
        for place, label in enumerate(labels[i].tolist()):
            if label != -100:
                total, count = total - logits[place].log_softmax(0)[label], count + 1
    assert count > 5
    torch.testing.assert_close(value, total / count, rtol=1e-4, atol=1e-5)
    (total / count).backward()
    there = dict(getattr(plain, plain.base_model_prefix).named_parameters())
    for name, parameter in model.encoder.named_parameters():
        if name in there and there[name].grad is not None:
            torch.testing.assert_close(parameter.grad, there[name].grad, rtol=1e-3, atol=1e-5, msg=name)
    head = [p for p in objective.parameters() if p.requires_grad]
    assert head and all(p.grad is not None for p in head)


def test_beside_a_loss_it_is_the_mean_over_the_tokens_of_both_views(tmp_path):
    save_tiny(tmp_path / "tiny", initializer_range=0.3)
    model = load_model(str(tmp_path / "tiny"), "cls", default_pooler=True).eval()
    objective = Contrastive(build_loss("focal"), mlm_weight=0.3, mlm_probability=0.5)
    objective.attach(model)
    batch = Views(model.tokenizer, 16)([{"text": text} for text in SENTENCES]) | {"seed": 5}
    value, pairs = objective.loss(model, batch)
    tokens, total, count, hidden_ones = objective.tokens, 0.0, 0, []
    for view in range(2):
        ids, mask = batch["input_ids"][:, view], batch["attention_mask"][:, view]
        draws = draw(5, batch["text_ids"], mask, model.config.vocab_size, view)
        hidden, labels = hide(ids, tokens.special[ids] | (mask == 0), draws, 0.5, tokens.mask_id)
        hidden_ones.append(hidden)
        for i in range(len(ids)):
            states = model.encoder(input_ids=hidden[i : i + 1], attention_mask=mask[i : i + 1]).last_hidden_state[0]
            for place, label in enumerate(labels[i].tolist()):
                if label != -100:
                    total, count = total - tokens.head(states)[place].log_softmax(0)[label], count + 1
    assert not hidden_ones[0].equal(hidden_ones[1])
    plain = objective.criterion(pairs) + 0.3 * total / count
    torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-6)
    assert objective.diagnostics(pairs)["mlm_loss"] == pytest.approx((total / count).item(), rel=1e-5)
    trained = [p for part in (model, objective) for p in part.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(of, trained, allow_unused=True, retain_graph=True) for of in (value, plain)]
    for found, expected in zip(*gradients, strict=True):  # the projection has none in eval mode
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert "mlm_weight" in str(objective.identity()) and objective.memory()["passes"] == 2
    with pytest.raises(UserError, match="mlm_probability is 1.0"):
        Contrastive(build_loss("focal"), mlm_weight=0.3, mlm_probability=1.0)


def test_every_parameter_moves_in_one_step_and_chunks_change_nothing(tmp_path):
    base = str(save_tiny(tmp_path / "base"))

    def gradients(chunk):
        trainer = objective_trainer(base, tmp_path / "run", "mlm", dropout=0.0, max_steps=1, optim="sgd",
                                    learning_rate=1.0, max_grad_norm=0.0, per_device_train_batch_size=8)  # fmt: skip
        trainer.model.chunk_size = chunk
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
        trainer.train()
        return {name: before[name] - p.detach() for name, p in trainer.model.named_parameters() if name in before}

    one, chunked = gradients(None), gradients(3)
    assert not [n for n, g in one.items() if not g.any() and "key.bias" not in n] and len(one) > 30
    assert not [name for name in one if "pooler" in name]
    for name in one:
        torch.testing.assert_close(chunked[name], one[name], rtol=1e-3, atol=1e-6)


def test_whole_words_are_hidden_together(tmp_path):
    model, objective = attached(tmp_path / "tiny")
    tokens = objective.tokens
    ids = model.tokenizer(["xyz dog qrs"], return_tensors="pt")["input_ids"]
    continues = tokens.continues[ids]
    assert continues.tolist() == [[False, False, True, True, False, False, True, True, False]]
    chosen = by_words(torch.arange(9).unsqueeze(0), continues)
    assert chosen.tolist() == [[0, 1, 1, 1, 4, 5, 5, 5, 8]]
    _, pieces = attached(tmp_path / "tiny", whole_words=False)
    assert not pieces.tokens.continues.any()


def test_draws_follow_seed_and_text_alone(tmp_path):
    model, _ = attached(tmp_path / "tiny")
    batch = batch_of(model)
    texts, mask = batch["text_ids"], batch["attention_mask"][:, 0]
    whole = draw(3, texts, mask, 90)
    part = draw(3, texts[2:4], mask[2:4, :], 90)
    for name, other in vars(part).items():
        assert getattr(whole, name)[2:4].equal(other)
    assert not draw(4, texts, mask, 90).chosen.equal(whole.chosen)
    assert not draw(3, texts, mask, 90, view=1).chosen.equal(whole.chosen)
    assert (whole.chosen[mask == 0] == 1).all()


def test_what_does_not_go_is_refused(tmp_path):
    with pytest.raises(UserError, match="mask_probability is 1.5; it must be above 0 and below 1"):
        MaskedLanguageModel(mask_probability=1.5)
    model, _ = attached(tmp_path / "tiny")
    model.tokenizer.mask_token = None
    with pytest.raises(UserError, match="the tokenizer of this bert encoder has no mask token"):
        MaskedLanguageModel().attach(model)


def test_the_head_of_the_checkpoint_is_taken(tmp_path):
    save_tiny(tmp_path / "plain")
    whole = AutoModelForMaskedLM.from_config(CONFIGS["bert"])
    whole.save_pretrained(tmp_path / "whole")
    tiny_tokenizer().save_pretrained(tmp_path / "whole")
    model = load_model(str(tmp_path / "whole"), "cls", default_pooler=True)
    objective = MaskedLanguageModel()
    objective.attach(model)
    saved = load_file(tmp_path / "whole/model.safetensors")
    found = objective.tokens.head.parts.state_dict()
    name = "cls.predictions.transform.dense.weight"
    assert found[name].equal(saved[name]) and not [key for key in found if "embeddings" in key]
