"""What a checkpoint says of itself is used; one that is damaged, incomplete or made of parts of two is refused."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CONFIGS, SENTENCES, record_mean, save_tiny, tiny_tokenizer
from transformers import AutoConfig, AutoModel, GPT2Config, set_seed

from hf_focalcse.encoder.auto import AutoModelForFocalCL, BertForFocalCL
from hf_focalcse.encoder.loading import load_model, require_projection
from hf_focalcse.encoder.poolers import POOLERS
from hf_focalcse.encoder.recorded import Pooling, pooled_as
from hf_focalcse.errors import UserError
from hf_focalcse.training.checks import check_model

FAMILIES = list(CONFIGS)


# ---- what the checkpoint says of itself


def test_pooling_is_recorded_and_used_again(tmp_path):
    model = load_model(str(save_tiny(tmp_path / "base")), "avg")
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
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean", "cls"]}, "mean+cls_before_pooler"),
        ({"pooling_mode": "median"}, "pools as 'median'"),
        ({"pooling_mode_mode": "mean"}, "the key 'pooling_mode_mode'"),
    ],
)
def test_sentence_transformers_pooling_is_read(tmp_path, pooling, expected):
    folder = save_tiny(tmp_path)
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if expected.split("+")[0] in POOLERS:
        assert load_model(str(folder)).pooler_name == expected
    else:
        with pytest.raises(UserError, match=expected):
            load_model(str(folder))


def test_what_is_recorded_stays_known_whatever_is_chosen(tmp_path):
    folder = record_mean(save_tiny(tmp_path))
    said = Pooling("mean", "none", "1_Pooling/config.json", prompt="", template="")
    chosen = load_model(str(folder), "cls")
    assert (chosen.pooler_name, chosen.projection_use, chosen.published) == ("cls", "training", said)
    by_class = AutoModelForFocalCL.from_pretrained(folder)
    assert (by_class.pooler_name, by_class.projection_use, by_class.published) == ("mean", "none", said)
    with pooled_as(chosen, chosen.published):
        np.testing.assert_array_equal(chosen.encode(SENTENCES), by_class.encode(SENTENCES))
    assert (chosen.pooler_name, chosen.projection_use) == ("cls", "training")
    chosen.save_pretrained(tmp_path / "saved"), chosen.tokenizer.save_pretrained(tmp_path / "saved")
    assert load_model(str(tmp_path / "saved")).published == Pooling(
        "cls", "training", "focal_cl in config.json", "", ""
    )


def test_training_takes_cls_where_nothing_is_recorded(tmp_path):
    model = load_model(str(save_tiny(tmp_path)), default_pooler=True)
    assert (model.pooler_name, model.projection_use, model.published) == ("cls", "training", None)
    assert load_model(str(record_mean(tmp_path)), default_pooler=True).pooler_name == "mean"


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
    for kind in (AutoModelForFocalCL, BertForFocalCL):
        assert {p.dtype for p in kind.from_pretrained(str(folder)).parameters()} == {torch.float32}
    asked = BertForFocalCL.from_pretrained(str(folder), dtype=torch.float16)
    assert {p.dtype for p in asked.parameters()} == {torch.float16}
    with pytest.raises(UserError, match=r"weights of the encoder are torch\.float16, in which small updates are lost"):
        check_model(asked, None)


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
    with pytest.raises(UserError, match=r"as a pickle \(pytorch_model.bin\), .*weights_only=True"):
        load_model(str(folder), "cls")


@pytest.mark.parametrize("files", [1, 2])
def test_the_line_that_converts_pickled_weights_does(tmp_path, files):
    """Of one file, and of several with an index."""
    folder = save_tiny(tmp_path / "encoder")
    expected = load_model(str(folder), "mean").encode(SENTENCES)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = ["pytorch_model.bin"] if files == 1 else [f"pytorch_model-0000{i + 1}-of-00002.bin" for i in range(2)]
    index = {key: names[i % files] for i, key in enumerate(weights)}
    for name in names:
        torch.save({key: weights[key] for key in weights if index[key] == name}, folder / name)
    if files > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    with pytest.raises(UserError, match="as a pickle") as refusal:
        load_model(str(folder), "mean")
    line = re.search('python -c "(.*)"$', str(refusal.value)).group(1)
    subprocess.run([sys.executable, "-c", line], cwd=folder, check=True)
    np.testing.assert_array_equal(load_model(str(folder), "mean").encode(SENTENCES), expected)


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
    with pytest.raises(UserError, match=r"modules.json of .* is not valid JSON"):
        load_model(str(folder))
    with pytest.raises(UserError, match="only a Hub id has them"):
        load_model(str(folder), "cls", revision="abc")
