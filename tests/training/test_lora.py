"""Training by LoRA: what is learnt, what checkpoints hold, how runs go on, and what is left for others to load."""

import json
import re
import shutil

import numpy as np
import peft
import pytest
import rank_training
import torch
from rank_training import needs_fsdp
from safetensors.torch import load_file, save_file
from tiny import SENTENCES, record_mean, save_tiny
from tiny_training import make_trainer
from torch.utils.data import SequentialSampler
from transformers import AutoModel

from hf_focalcse import add_lora
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.lora import layers_of
from hf_focalcse.errors import UserError
from hf_focalcse.publishing.export import export_model

CLOSE = 1 - 1e-6


def lora_model(folder, family="bert", pooler="cls", rates=0.1, rank=4, **settings):
    base = folder / f"base-{family}"
    torch.manual_seed(1)
    if not base.is_dir():
        save_tiny(base, family, **({"initializer_range": 0.4} if family != "t5" else {}))
    return add_lora(load_model(str(base), pooler, dropout=rates), rank, **settings)


def trainer_of(folder, model=None, **arguments):
    arguments = {"learning_rate": 0.01, "save_strategy": "steps", "save_steps": 2} | arguments
    return make_trainer(folder, model=model or lora_model(folder), **arguments)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def lowest(one, other):
    one, other = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (one, other))
    return float((one * other).sum(1).min())


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert", "qwen3", "t5"])
def test_only_the_adapter_and_the_projection_are_trained(tmp_path, family):
    model = lora_model(tmp_path, family, "cls" if family == "bert" else "mean")
    before = state(model)
    trainer_of(tmp_path, model, max_steps=2, save_strategy="no").train()
    moved = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    beside = {name for name in moved if "lora_" not in name}
    assert moved == trained and any("lora_A" in name for name in moved)
    assert beside == ({"bert.pooler.dense.weight", "bert.pooler.dense.bias"} if family == "bert" else set())
    assert not [name for name in layers_of(model) if "pooler" in name]


def gradients(model, chunk, packing):
    model.chunk_size, model.packing = chunk, packing
    for layer in layers_of(model).values():  # at the start B is zero, so that A would get no gradient
        torch.nn.init.normal_(layer.lora_B["default"].weight, generator=torch.Generator().manual_seed(2))
    batch = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    model.train()(batch["input_ids"], batch["attention_mask"]).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_chunks_and_padding_give_the_same_gradients(tmp_path):
    made = [lora_model(tmp_path, rates=0.0, dropout=0.0) for _ in range(3)]
    for model in made[1:]:
        model.load_state_dict(made[0].state_dict())
    wanted, *others = (gradients(*of) for of in zip(made, (None, 3, 4), (True, True, False), strict=True))
    for found in others:
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_activation_checkpointing_gives_the_adapter_its_gradients(tmp_path, reentrant):
    plain, again = (lora_model(tmp_path, rates=0.0, dropout=0.0) for _ in range(2))
    again.load_state_dict(plain.state_dict())
    again.recomputing = True
    again.gradient_checkpointing_enable(*([] if reentrant is None else [{"use_reentrant": reentrant}]))
    wanted, found = gradients(plain, None, True), gradients(again, None, False)
    for name, value in wanted.items():
        assert found[name] is not None, name
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def trained_in_ranks(base, folder, batch, chunk):
    """Two steps without noise; the trained weights, and what lies in the checkpoint."""
    torch.manual_seed(3)
    trainer = rank_training.make_trainer(
        base, folder, chunk=chunk, lora={"rank": 4, "dropout": 0.0}, max_steps=2, per_device_train_batch_size=batch,
        learning_rate=0.1, optim="sgd", max_grad_norm=0.0, save_strategy="steps", save_steps=2,
    )  # fmt: skip
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.model.config.attention_probs_dropout_prob = 0.0
    trainer._get_train_sampler = lambda *_: SequentialSampler(trainer.train_dataset)
    trainer.train()
    files = sorted(path.name for path in (folder / "checkpoint-2").iterdir())
    return {
        name: p.detach().numpy().copy() for name, p in trainer.encoder.named_parameters() if p.requires_grad
    }, files


def test_two_processes_learn_what_one_does(ranks, tmp_path):
    base = str(save_tiny(tmp_path / "base", initializer_range=0.4))
    ((one, _),) = ranks(1, trained_in_ranks, base, tmp_path / "1", 8, None)
    several = ranks(2, trained_in_ranks, base, tmp_path / "2", 4, 3)
    for found, files in several:
        assert found.keys() == one.keys() and "model.safetensors" not in files and "adapter_model.safetensors" in files
        assert max(float(np.abs(found[name] - one[name]).max()) for name in one) < 1e-4


@needs_fsdp
def test_engines_that_shard_are_refused(ranks, tmp_path):
    base = str(save_tiny(tmp_path / "base"))
    assert ranks(2, refusal, base, tmp_path / "2")[0].startswith("--lora does not go with FSDP2, which shards")


def refusal(base, folder):
    try:
        rank_training.make_trainer(base, folder, "FSDP2", lora={"rank": 4})
    except UserError as error:
        return str(error)


def test_a_checkpoint_holds_the_adapter_alone_and_a_resumed_run_equals_the_whole_one(tmp_path):
    whole = trainer_of(tmp_path / "whole", lora_model(tmp_path))
    whole.train()
    checkpoint = tmp_path / "whole/out/checkpoint-2"
    assert not (checkpoint / "model.safetensors").exists() and not (checkpoint / "config.json").exists()
    assert all(".lora_" in name for name in load_file(checkpoint / "adapter_model.safetensors"))
    shutil.copytree(checkpoint, tmp_path / "part/out/checkpoint-2")
    part = trainer_of(tmp_path / "part", lora_model(tmp_path))
    part.train(resume_from_checkpoint="last")
    for file in ("adapter_model.safetensors", "focal_head.safetensors", "optimizer.pt", "scheduler.pt"):
        one, other = (tmp_path / run / "out/checkpoint-4" / file for run in ("whole", "part"))
        assert one.read_bytes() == other.read_bytes(), file


def test_a_checkpoint_embeds_and_the_saved_encoder_is_the_merged_one(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.train()
    trainer.save_whole(tmp_path / "out")
    wanted = trainer.model.encode(SENTENCES)
    assert lowest(wanted, load_model(str(tmp_path / "base-bert"), "cls_before_pooler").encode(SENTENCES)) < 0.99
    names = set(load_file(tmp_path / "out/model.safetensors"))
    assert names == set(load_file(tmp_path / "base-bert/model.safetensors")) or not [n for n in names if "lora" in n]
    for folder in ("out", "out/adapter", "out/checkpoint-4"):
        model = load_model(str(tmp_path / folder))
        assert (model.pooler_name, model.projection_use) == ("cls", "training")
        assert lowest(wanted, model.encode(SENTENCES)) >= CLOSE, folder


@pytest.mark.parametrize(
    ("family", "pooler", "projection"), [("bert", "cls", "always"), ("modernbert", "cls", "always")]
)
def test_a_projection_that_stays_is_in_the_checkpoint(tmp_path, family, pooler, projection):
    model = lora_model(tmp_path, family, pooler)
    model.set_pooling(pooler, projection)
    trainer = trainer_of(tmp_path, model, max_steps=2)
    trainer.train()
    trainer.save_whole(tmp_path / "out")
    wanted = trainer.model.encode(SENTENCES)
    for folder in ("out", "out/checkpoint-2"):
        assert lowest(wanted, load_model(str(tmp_path / folder)).encode(SENTENCES)) >= CLOSE, folder


def test_the_best_adapter_is_taken_at_the_end(tmp_path, dev):
    trainer = trainer_of(tmp_path, dev=dev, max_steps=6, greater_is_better=False)
    trainer.train()
    best = load_model(trainer.state.best_model_checkpoint)
    assert trainer.state.best_global_step < 6
    assert lowest(trainer.model.encode(SENTENCES), best.encode(SENTENCES)) >= CLOSE


def test_peft_itself_loads_the_adapter(tmp_path):
    trainer = trainer_of(tmp_path, lora_model(tmp_path, pooler="mean"), max_steps=2)
    trainer.train()
    folder = tmp_path / "out/checkpoint-2"
    model = peft.AutoPeftModelForFeatureExtraction.from_pretrained(folder).eval()
    batch = trainer.model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    found = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    assert lowest(trainer.model.encode(SENTENCES), found) >= CLOSE


@pytest.mark.parametrize("settings", [
    {"use_dora": True},
    {"rank_pattern": {"query": 2}, "alpha_pattern": {"layer.1.attention.self.query": 1, "value": 9}},
    {"use_rslora": True},
    {"init_lora_weights": "orthogonal", "layers_to_transform": [1]},
], ids=["dora", "patterns", "root", "layers"])  # fmt: skip
def test_adapters_of_others_are_merged_as_peft_does(tmp_path, settings):
    base = record_mean(save_tiny(tmp_path / "base", initializer_range=0.4))
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["query", "value"], **settings)
    model = peft.get_peft_model(AutoModel.from_pretrained(base), config, adapter_name="default").eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 1.0 if "magnitude" in name else 0.0, 0.3)
    model.save_pretrained(tmp_path / "adapter")
    found = load_model(str(tmp_path / "adapter"))
    batch = found.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
    plain = load_model(str(base)).encode(SENTENCES)
    assert lowest(found.encode(SENTENCES), ((hidden * mask).sum(1) / mask.sum(1)).numpy()) >= CLOSE
    assert lowest(found.encode(SENTENCES), plain) < 0.999


@pytest.mark.parametrize("task", [None, "FEATURE_EXTRACTION"])
@pytest.mark.parametrize("beginning", ["pissa", "olora"])
def test_an_adapter_that_began_by_changing_its_base_is_refused_and_the_remedy_works(tmp_path, task, beginning):
    """Such an adapter stands on other weights than those of its base, so to add it there gives other vectors."""
    base = record_mean(save_tiny(tmp_path / "base", initializer_range=0.4))
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["query", "value"], init_lora_weights=beginning, task_type=task
    )
    model = peft.get_peft_model(AutoModel.from_pretrained(base), config).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += torch.randn_like(parameter) * 0.3
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match=f"with init_lora_weights '{beginning}', not merged here") as refusal:
        load_model(str(tmp_path / "adapter"))
    line = re.search(r"merge it with peft \((.*\(FOLDER\))\), copy the tokenizer", str(refusal.value)).group(1)
    shutil.copytree(base, tmp_path / "merged", ignore=shutil.ignore_patterns("*.safetensors"))
    exec(f"from peft import *\n{line}", {"FOLDER": str(tmp_path / "merged")})
    found = load_model(str(tmp_path / "merged"))
    batch = found.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
    assert lowest(found.encode(SENTENCES), ((hidden * mask).sum(1) / mask.sum(1)).numpy()) >= CLOSE


def test_an_adapter_beside_a_whole_encoder_is_refused_and_one_beside_its_config_is_read(tmp_path):
    """transformers adds the first to the encoder where peft is installed, and passes over it where it is not."""
    base = record_mean(save_tiny(tmp_path / "base", initializer_range=0.4))
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["query", "value"], init_lora_weights=False)
    peft.get_peft_model(AutoModel.from_pretrained(base), config).save_pretrained(tmp_path / "adapter")
    expected = load_model(str(tmp_path / "adapter")).encode(SENTENCES)
    for name, kept in (("whole", "*.txt"), ("config", "*.safetensors")):
        shutil.copytree(base, tmp_path / name, ignore=shutil.ignore_patterns(kept))
        shutil.copytree(tmp_path / "adapter", tmp_path / name, dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"whole encoder \(model.safetensors\) and an adapter .*give one of the two"):
        load_model(str(tmp_path / "whole"))
    assert lowest(load_model(str(tmp_path / "config")).encode(SENTENCES), expected) >= CLOSE


def test_damaged_adapters_are_refused(tmp_path):
    trainer_of(tmp_path, lora_model(tmp_path, pooler="mean"), max_steps=2).train()
    folder, other = tmp_path / "out/checkpoint-2", tmp_path / "small"
    weights = load_file(folder / "adapter_model.safetensors")
    save_tiny(other, hidden_size=8)
    config = json.loads((folder / "adapter_config.json").read_text())
    for content, said in (
        ({k: v for k, v in weights.items() if "lora_B" not in k}, "does not have in that shape"),
        (
            weights | {"base_model.model.x": weights[min(weights)].clone()},
            "holds 'base_model.model.x', which is no change of a linear layer: merge it with peft",
        ),
    ):
        save_file(content, folder / "adapter_model.safetensors")
        with pytest.raises(UserError, match=said):
            load_model(str(folder))
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(UserError, match="is one of DoRA, but has no lengths"):
        load_model(str(folder))
    for pattern, said in (({"(": 3}, "no regular expression"), ({"query": "x"}, "the alpha 'x' for 'query'")):
        (folder / "adapter_config.json").write_text(json.dumps(config | {"alpha_pattern": pattern}))
        with pytest.raises(UserError, match=said):
            load_model(str(folder))
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(other)}))
    with pytest.raises(UserError, match="does not have in that shape; it is of another base"):
        load_model(str(folder))
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="adapter_model.safetensors is damaged"):
        load_model(str(folder))


def test_runs_of_other_settings_and_bases_do_not_go_on(tmp_path):
    trainer_of(tmp_path, max_steps=2).train()
    other = tmp_path / "other"
    save_tiny(other / "base-bert", seed=5, initializer_range=0.4)
    for model, said in (
        (lora_model(tmp_path, rank=2), "LoRA was .*'rank': 4.* and is .*'rank': 2"),
        (lora_model(other), r"the base encoder of LoRA \(CRC-32 of its weights\) was"),
        (load_model(str(tmp_path / "base-bert"), "cls"), "LoRA was .* and is None"),
    ):
        trainer = trainer_of(tmp_path, model)
        with pytest.raises(UserError, match=said):
            trainer.train(resume_from_checkpoint="last")
    trainer.allow_resume_mismatch = True
    with pytest.raises(UserError, match="holds an adapter; resume it with --lora"):
        trainer.train(resume_from_checkpoint="last")


def test_mistakes_are_refused_in_a_sentence(tmp_path):
    def fresh():
        return load_model(str(tmp_path / "base-bert"), "cls")

    trained = lora_model(tmp_path)
    for call, said in (
        (lambda: add_lora(fresh(), 0), "LoRA's rank is 0; it must be a whole number, at least 1"),
        (lambda: add_lora(fresh(), alpha=-1.0), "LoRA's alpha is -1.0; it must be above 0"),
        (lambda: add_lora(fresh(), dropout=1.0), "LoRA's dropout is 1.0; it must be at least 0 and below 1"),
        (lambda: add_lora(fresh(), target_modules=["qury"]), "is called 'qury', did you mean 'query'"),
        (lambda: add_lora(fresh(), target_modules=["word_embeddings"]), "no linear layer of this bert encoder"),
        (lambda: add_lora(fresh(), target_modules=["pooler.dense"]), "is called 'pooler.dense'"),
        (lambda: add_lora(trained), "is trained by LoRA already"),
        (lambda: make_trainer(tmp_path, model=peft.get_peft_model(fresh(), peft.LoraConfig(target_modules=["query"]))),
         r"with adapters, .* without get_peft_model or add_adapter: hf_focalcse.add_lora"),
        (lambda: make_trainer(tmp_path, model=peft.inject_adapter_in_model(
            peft.LoraConfig(target_modules=["query"]), fresh())), "with adapters"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said) as error:
            call()
        assert "\n" not in str(error.value)


def test_an_adapter_is_no_base_of_another_until_it_is_merged(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, lora_model(tmp_path, pooler="mean"), max_steps=2)
    trainer.train()
    with pytest.raises(UserError, match="is an adapter already, .*merge it first: focalcse export"):
        add_lora(load_model(str(tmp_path / "out/checkpoint-2")))
    monkeypatch.setattr("hf_focalcse.publishing.export.check_vectors", lambda *_: {})
    folder, _ = export_model(tmp_path / "out/checkpoint-2", tmp_path / "merged")
    assert add_lora(load_model(str(folder)), 2).lora.rank == 2


def test_the_recorded_base_does_not_say_how_an_adapter_pools(tmp_path):
    base = record_mean(save_tiny(tmp_path / "base"))
    model = add_lora(load_model(str(base), "max"), 2)
    trainer_of(tmp_path, model, max_steps=2).train()
    found = load_model(str(tmp_path / "out/checkpoint-2"))
    assert found.pooler_name == "max" and found.spec.adapter.rank == 2
    assert json.loads((tmp_path / "out/checkpoint-2/focal_cl.json").read_text())["pooler"] == "max"
