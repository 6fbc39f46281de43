"""What a folder says of its encoder: prompts, limits, lower-casing, modules, adapters; and what is refused by name."""

import json

import numpy as np
import pytest
import torch
from tiny import SENTENCES, record_mean, save_tiny

from hf_focalcse.data.views import Views
from hf_focalcse.encoder import tokenizer
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.prompts import add_prompt, choose_prompt
from hf_focalcse.errors import UserError

DENSE = {"in_features": 16, "out_features": 8}


def described(folder, modules=(), transformer=None, **config):
    """A tiny BERT that pools by mean, with further files of sentence-transformers: (type, config) of each module."""
    record_mean(save_tiny(folder, initializer_range=0.4))
    listed = json.loads((folder / "modules.json").read_text())
    for i, (kind, content) in enumerate(modules, 2):
        listed.append({"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"})
        if content is not None:
            (folder / f"{i}_{kind}").mkdir()
            (folder / f"{i}_{kind}/config.json").write_text(json.dumps(content))
    (folder / "modules.json").write_text(json.dumps(listed))
    if transformer is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(transformer))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder


def test_prompts_are_chosen_by_text_by_name_and_by_default():
    prompts = {"query": "query: ", "passage": "passage: "}
    assert choose_prompt(prompts, None) == "" and choose_prompt(prompts, "passage") == "passage: "
    assert choose_prompt(prompts, "passage", prompt_name="query") == "query: "
    assert choose_prompt(prompts, "passage", prompt="") == ""
    with pytest.raises(UserError, match="no prompt called 'quary'; it has 'query', 'passage'"):
        choose_prompt(prompts, None, prompt_name="quary")
    with pytest.raises(UserError, match="both given"):
        choose_prompt(prompts, None, "a", "query")
    assert add_prompt(prompts, "query: ") == (prompts, "query")
    assert add_prompt(prompts, "") == (prompts, None)
    assert add_prompt(prompts, "a: ") == (prompts | {"default": "a: "}, "default")


def test_a_prompt_stands_before_every_text(tmp_path):
    folder = described(tmp_path / "base", prompts={"query": "the man "}, default_prompt_name="query")
    model, plain = load_model(str(folder)), load_model(str(folder), prompt="")
    expected = plain.encode([f"the man {text}" for text in SENTENCES])
    np.testing.assert_array_equal(model.encode(SENTENCES), expected)
    rows = [{"text": text} for text in SENTENCES]
    prompted = [{"text": f"the man {text}"} for text in SENTENCES]
    one = Views(model.tokenizer, 32).prompted(model.prompt)(rows)
    other = Views(model.tokenizer, 32)(prompted)
    assert torch.equal(one["input_ids"], other["input_ids"]) and torch.equal(one["text_ids"], other["text_ids"])
    with pytest.raises(UserError, match=r"holds the special token '\[MASK\]'"):
        Views(model.tokenizer, 32).prompted("a [MASK] ")
    # and it is kept
    given = load_model(str(folder), prompt="a woman ")
    given.save_pretrained(tmp_path / "out"), given.tokenizer.save_pretrained(tmp_path / "out")
    again = load_model(str(tmp_path / "out"))
    assert again.prompts == {"query": "the man ", "document": "", "default": "a woman "}
    assert again.prompt == "a woman " and "'a woman ' (default) before every text" in " ".join(
        again.spec.describe().split()
    )


def test_a_prompt_can_be_left_out_of_pooling(tmp_path):
    folder = described(tmp_path, prompts={"query": "the man "})
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "mean", "include_prompt": false}')
    model = load_model(str(folder), prompt_name="query")
    ids = torch.tensor([[2, *model.tokenizer("the man runs")["input_ids"][1:]]])
    hidden = model.encoder(ids, torch.ones_like(ids)).last_hidden_state
    assert model.unpooled == 3  # [CLS] the man
    np.testing.assert_allclose(model.encode(["runs"]), hidden[:, 3:].mean(1).detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(model.encode(["runs"], prompt=""), load_model(str(folder)).encode(["runs"]))


def test_lower_casing_limit_and_truncation_are_honoured_and_kept(tmp_path):
    folder = described(
        tmp_path / "base", transformer={"max_seq_length": 7, "do_lower_case": True}, truncate_dim=5, model_type=None
    )
    model = load_model(str(folder))
    assert model.max_length() == 7 and model.encode(SENTENCES).shape == (len(SENTENCES), 5)
    assert model.tokenizer.backend_tokenizer.normalizer.normalize_str("ÀB") == "ab"  # then without accents
    model.save_pretrained(tmp_path / "out"), model.tokenizer.save_pretrained(tmp_path / "out")
    again = load_model(str(tmp_path / "out"))
    assert again.max_length() == 7 and again.config.focal_cl["lower_case"] is True
    np.testing.assert_array_equal(again.encode(SENTENCES), model.encode(SENTENCES))


def test_modules_without_weights_are_refused(tmp_path):
    dense = {
        "in_features": 16,
        "out_features": 8,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    with pytest.raises(UserError, match=r"2_Dense of .* must hold linear.weight \(8, 16\), .*, but holds nothing"):
        load_model(str(described(tmp_path, [("Dense", dense)])))
    torch.save({}, tmp_path / "2_Dense/pytorch_model.bin")
    with pytest.raises(UserError, match=r"2_Dense/pytorch_model.bin\), .*'2_Dense/model.safetensors'"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("modules", "transformer", "config", "said"),
    [
        ([("CNN", {})], None, {}, "CNN has no counterpart here"),
        ([("Dense", DENSE | {"use_residual": True})], None, {}, "sets use_residual"),
        ([("Dense", DENSE | {"activation_function": "my.Swish"})], None, {}, "the activation 'my.Swish'"),
        ([("Dense", DENSE | {"new": 1})], None, {}, "the key 'new'"),
        ([("Dense", DENSE | {"in_features": 9, "bias": False})], None, {}, "takes vectors of 9 dimensions"),
        ([], {"max_seq_length": 9, "query_length": 3}, {}, "sets query_length to 3"),
        ([], {"model_args": {"is_decoder": True}}, {}, "sets 'is_decoder' in model_args"),
        ([], {"modality_config": {"image": {}}}, {}, "sets modality_config"),
        ([], None, {"default_prompt_name": "q"}, "names the default prompt 'q', but its prompts are none"),
        ([], None, {"similarity_fn_name": "hamming"}, "compares by 'hamming'"),
        ([], None, {"model_type": "SparseEncoder"}, "describes a SparseEncoder"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(tmp_path, modules, transformer, config, said):
    with pytest.raises(UserError, match=said):
        load_model(str(described(tmp_path, modules, transformer, **config)))


def test_a_sentencepiece_model_names_the_packages_that_read_it(tmp_path, monkeypatch):
    folder = record_mean(save_tiny(tmp_path))
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    monkeypatch.setattr(tokenizer, "find_spec", lambda package: None)
    with pytest.raises(UserError, match="is a SentencePiece model, .*pip install sentencepiece protobuf; or take"):
        load_model(str(folder))


def test_modules_of_other_packages_are_refused(tmp_path):
    folder = record_mean(save_tiny(tmp_path))
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(UserError, match=r"'custom_st.Transformer', which is code of its own and is never run"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "is a IA3 adapter of .*; only LoRA can be merged here: merge it with peft"),
        ({"peft_type": "PREFIX_TUNING"}, "is a PREFIX_TUNING adapter .*: it is no change of weights .*from its base"),
        ({"bias": "all"}, "with bias 'all', .*merge_and_unload"),
        ({"r": None}, "has no r, which must be a whole number from 1"),
        ({"base_model_name_or_path": None}, "does not name its base"),
        ({"base_model_name_or_path": "/nowhere"}, "is an adapter, and its base cannot be read"),
        ({}, "has no adapter_model.safetensors"),
        ({"r": "4"}, "adapter_config.json of .* has r '4'; it must be a whole number from 1"),
        ({"lora_alpha": None}, "has no lora_alpha, which must be a number"),
        ({"init_lora_weights": "pissa_niter_4"}, "with init_lora_weights 'pissa_niter_4', not merged here: merge it"),
        ({"init_lora_weights": "olora"}, "with init_lora_weights 'olora'"),
        ({"alora_invocation_tokens": [7]}, "with alora_invocation_tokens .*, so start from its base"),
        ({"layer_replication": [[0, 2], [0, 2]]}, "with layer_replication"),
        ({"target_parameters": ["query.weight"]}, "with target_parameters"),
        ({"trainable_token_indices": [5]}, "with trainable_token_indices"),
        ({"of_a_later_version": 1}, "with of_a_later_version 1"),
    ],
)
def test_adapters_that_cannot_be_merged_are_refused(tmp_path, change, said):
    base = record_mean(save_tiny(tmp_path / "base"))
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 4} | change
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(UserError, match=said):
        load_model(str(tmp_path / "adapter"))
