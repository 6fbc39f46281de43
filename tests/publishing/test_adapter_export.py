"""A run with --lora by the command line, and its two exports: merged, and the adapter alone."""

import json
import shutil

import pytest
from tiny import SENTENCES
from tiny_run import TRAIN, write_inputs

from hf_focalcse.cli import main as cli
from hf_focalcse.encoder import packaged
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.lora import public_base
from hf_focalcse.errors import UserError
from hf_focalcse.publishing import adapter as adapter_module
from hf_focalcse.publishing.export import export_model
from hf_focalcse.publishing.hub import Target
from hf_focalcse.publishing.parity import lowest_cosine
from hf_focalcse.publishing.publish import publish
from hf_focalcse.runs.record import RunRecord

LORA = " --pooler cls --lora --lora_rank 4 --lora_target_modules query value --learning_rate 0.01"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = write_inputs(tmp_path_factory.mktemp("secret-place"))
    cli.run("train", (TRAIN.format(folder) + LORA).split(), script="run_unsup.py")
    return folder / "out"


def content(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_record_and_the_card_say_what_was_trained(trained):
    record = RunRecord.load(trained)
    lora = record.model["lora"]
    assert lora["target_modules"] == ["attention.self.query", "attention.self.value"]
    assert lora["adapter_parameters"] == 2 * 2 * 2 * 4 * 16  # layers, targets, A and B, rank, size
    assert lora["trained_parameters"] == lora["adapter_parameters"] + 16 * 16 + 16  # and the projection
    assert record.settings["lora"] is True and record.settings["lora_rank"] == 4
    assert record.model["parameters"] == sum(p.numel() for p in load_model(str(trained)).parameters())
    assert "| LoRA | rank 4, alpha 8, dropout 0.05, on attention.self.query" in (trained / "README.md").read_text()


def test_the_adapter_alone_is_read_by_others(trained, tmp_path, monkeypatch):
    """transformers and sentence-transformers add it to its base in a fresh process: see `check_vectors`."""
    monkeypatch.setattr(adapter_module, "public_base", lambda base, revision: ("org/tiny", "abc"))
    folder, found = export_model(trained, tmp_path / "hub", adapter_only=True, publication={"repo_id": "org/adapter"})
    assert found.keys() == {"transformers", "sentence-transformers"}
    assert not {"model.safetensors", "config.json"} & content(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"], config["r"]) == ("org/tiny", "abc", 4)
    texts = [path.read_text() for path in folder.rglob("*.json")] + [(folder / "README.md").read_text()]
    assert not [text for text in texts if "secret-place" in text]
    card = texts[-1]
    assert "base_model: org/tiny\n" in card and "base_model_relation: adapter\n" in card and "pip install peft" in card
    assert "text-embeddings-router" not in card and "- peft" in card
    here = shutil.copytree(folder, tmp_path / "here")  # as somebody has it who has the base
    (here / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(trained.parent / "tiny"), "revision": None})
    )
    added, merged = (load_model(str(of)).encode(SENTENCES) for of in (here, trained))
    assert lowest_cosine(added, merged) > 1 - 1e-6
    with pytest.raises(UserError, match="without onnx/model.onnx"):
        publish(folder, Target("org/adapter"), onnx=True, adapter_only=True, dry_run=True)


def test_what_an_adapter_cannot_hold_is_refused(trained, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="the base of this adapter is the folder tiny, which others do not have"):
        export_model(trained, tmp_path / "hub", adapter_only=True)
    monkeypatch.setattr(adapter_module, "public_base", lambda base, revision: ("org/tiny", None))
    with pytest.raises(UserError, match="--adapter_only and --onnx are both given"):
        export_model(trained, tmp_path / "hub", adapter_only=True, onnx=True)
    copy = shutil.copytree(trained, tmp_path / "out")
    (copy / "adapter/adapter_model.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match="is not the adapter that .*run.json names"):
        export_model(copy, tmp_path / "hub", adapter_only=True)
    shutil.rmtree(copy / "adapter")
    with pytest.raises(UserError, match="holds no adapter, since it was not trained with --lora"):
        export_model(copy, tmp_path / "hub", adapter_only=True)
    assert not (tmp_path / "hub").exists()


def test_the_base_is_named_as_others_have_it(tmp_path, monkeypatch):
    assert public_base("org/base", "abc") == ("org/base", "abc")
    monkeypatch.setattr("hf_focalcse.encoder.lora.find_packaged", lambda: tmp_path)
    assert public_base(str(tmp_path), None) == (packaged.BASE_MODEL, packaged.BASE_REVISION)


def test_an_overwritten_run_leaves_no_adapter_behind(trained, tmp_path):
    folder = write_inputs(tmp_path)
    shutil.copytree(trained, folder / "out")
    cli.run("train", (TRAIN.format(folder) + " --overwrite_output_dir").split(), script="run_unsup.py")
    assert not (folder / "out/adapter").exists() and RunRecord.load(folder / "out").model["lora"] is None
