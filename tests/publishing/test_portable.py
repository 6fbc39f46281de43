"""What is rewritten of an encoder's files so that every version reads the same, and that nothing else is."""

import json

import pytest
from tiny import FURTHER, save_tiny, tiny_tokenizer
from transformers import AutoModel

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.publishing.formats import write_encoder
from hf_focalcse.publishing.portable import make_portable, portable_config, without_places
from hf_focalcse.publishing.readers import who_differs
from hf_focalcse.runs.record import without_paths

TOKENS = {"eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>"}
TEMPLATE = "{% if m.think %}<think>\n</think>{% endif %}</tool_call> /home/of/no one"


def test_tokens_templates_and_prompts_keep_their_slashes(tmp_path):
    """Only what is a path as a whole is one: "</s>" once became "<s>"."""
    (tmp_path / "config.json").write_text("{}")
    said = TOKENS | {"chat_template": TEMPLATE, "tokenizer_file": "/home/somebody/base/tokenizer.json"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said | {"name_or_path": "/home/x"}))
    make_portable(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == said | {"tokenizer_file": "tokenizer.json"}
    prompts = {"focal_cl": {"prompts": {"query": "/a/b/c"}, "base_model": "/home/somebody/base"}}
    assert without_places(prompts) == {"focal_cl": {"prompts": {"query": "/a/b/c"}, "base_model": "base"}}
    assert without_paths({"prompt": "either/or: </s> /x/y ", "at": "/home/x"}) == {
        "prompt": "either/or: </s> /x/y ",
        "at": "x",
    }


def test_an_export_has_the_tokens_of_its_base(tmp_path):
    folder = save_tiny(tmp_path / "base")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "</s>", "sep_token": "</s>"})
    tokenizer.save_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    (tmp_path / "out").mkdir()
    write_encoder(load_model(str(folder), "mean"), tmp_path / "out")
    before, after = (json.loads((tmp_path / at / "tokenizer_config.json").read_text()) for at in ("base", "out"))
    assert after["eos_token"] == "</s>" == after["sep_token"]
    tokens = [key for key in before if key.endswith("_token")]
    assert {key: after[key] for key in tokens} == {key: before[key] for key in tokens}


def test_code_that_is_not_shipped_is_not_named(tmp_path):
    model = load_model(str(save_tiny(tmp_path / "base", auto_map={"AutoModel": "own/code--modeling.Model"})), "mean")
    (tmp_path / "out").mkdir()
    write_encoder(model, tmp_path / "out")
    assert "auto_map" not in (tmp_path / "out/config.json").read_text()


def test_reading_both_ways_is_said_under_both_names():
    assert portable_config({"is_causal": False}) == {"is_causal": False, "use_bidirectional_attention": True}
    said = {"is_causal": False, "use_bidirectional_attention": False}
    assert portable_config(said) == said
    assert portable_config({"is_causal": True}) == {"is_causal": True}


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("bert", {}, []),
        ("qwen3", {}, ["transformers before 4.51"]),
        ("qwen3", {"is_causal": False}, ["transformers before 4.51", "transformers before 5.2 passes over"]),
        ("nomic_bert", {}, ["transformers before 5.5"]),
        ("bert", {"pooler": "mean+cls_before_pooler"}, ["The order in which its vectors are joined"]),
        ("bert", {"pooler": "cls_before_pooler+mean"}, ["cannot pool as cls_before_pooler+mean does"]),
        ("bert", {"pooler": "avg_first_last"}, ["cannot pool as avg_first_last does"]),
        ("bert", {"pooler": "weighted_mean"}, ["cannot pool as weighted_mean does"]),
        ("bert", {"include_prompt": False}, ["left out of pooling"]),
        ("bert", {"modules": [{"type": "LayerNorm", "dimension": 16}]}, ["passes over the layers after pooling"]),
        ("bert", {"prompts": {"q": "q: "}, "default_prompt_name": "q"}, ["`--default-prompt-name q`"]),
        ("bert", {"truncate_dim": 8}, ["keep the first 8 numbers"]),
    ],
)
def test_the_card_names_who_reads_otherwise(family, change, said):
    from hf_focalcse.encoder.auto import MODELS

    tiny = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 30}
    config = FURTHER[family].to_dict() if family in FURTHER else tiny
    kind = next(of for of in MODELS if of.model_type == family)
    keys = {key: value for key, value in change.items() if key in ("is_causal",)}
    record = {"pooler": "mean", "projection": "none"} | {k: v for k, v in change.items() if k not in keys}
    model = MODELS[kind](kind(**(config | keys | {"focal_cl": record})))
    found = who_differs(model)
    assert len(found) == len(said) and all(part in sentence for part, sentence in zip(said, found, strict=True)), found
