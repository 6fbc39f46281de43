"""Exports of every kind of encoder, read by sentence-transformers 3 on transformers 4: the same vectors, or the card
names the version that is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError
from hf_focalcse.publishing.formats import write_encoder, write_sentence_transformers
from hf_focalcse.publishing.readers import who_differs

OLDER = ["transformers==4.49.0", "numpy", "datasets==3.6.0", "accelerate==1.4.0", "sentence-transformers==3.4.1"]
READ = """
import json, sys
sys.modules["peft"] = None
import sentence_transformers, transformers
assert (sentence_transformers.__version__, transformers.__version__) == ("3.4.1", "4.49.0")
given, found = json.load(open(sys.argv[1])), {}
for folder, names in given["folders"].items():
    try:
        model = sentence_transformers.SentenceTransformer(folder, device="cpu", trust_remote_code=False)
        found[folder] = {name: model.encode(given["texts"], prompt_name=name or None).tolist() for name in names}
    except ValueError as error:
        found[folder] = str(error)
json.dump(found, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """A folder of packages that stand before those of this environment, whose torch they use."""
    folder = tmp_path_factory.mktemp("older")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, *OLDER[:2]], check=True)
    subprocess.run([*pip, "--no-deps", *OLDER[2:]], check=True)
    return folder


@pytest.mark.exhaustive
def test_older_libraries_read_exports_or_the_card_names_what_they_lack(shared, older, tmp_path):
    zoo, out = tmp_path / "zoo", tmp_path / "out"
    subprocess.run([sys.executable, str(shared / "prototypes/encoder_zoo.py"), str(zoo)], check=True)
    expected = json.loads((zoo / "expected.json").read_text(encoding="utf-8"))
    folders, needed = {}, {}
    for kind, row in expected["kinds"].items():
        try:
            model = load_model(str(zoo / kind))
        except UserError:
            assert row["expect"] != "same"
            continue
        stage = out / kind
        stage.mkdir(parents=True)
        write_sentence_transformers(model, stage, write_encoder(model, stage))
        folders[str(stage)] = ["", *(["query"] if "query" in row else [])]
        needed[kind] = " ".join(who_differs(model))
    (tmp_path / "given.json").write_text(json.dumps({"folders": folders, "texts": expected["sentences"]}))
    command = [sys.executable, "-c", READ, str(tmp_path / "given.json"), str(tmp_path / "found.json")]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(older)})
    found = {Path(folder).name: said for folder, said in json.loads((tmp_path / "found.json").read_text()).items()}
    unread = {kind for kind, said in found.items() if isinstance(said, str)}
    assert unread == {
        "nomic_bert_mean", "eurobert_mean", "gemma3_bidirectional", "qwen3_left", "qwen3_right", "qwen3_not_causal"
    }  # fmt: skip
    assert all("transformers before" in needed[kind] and "stop with an error" in needed[kind] for kind in unread)
    assert len(found) - len(unread) == 29
    for kind in found.keys() - unread:
        row = expected["kinds"][kind]
        for name, vectors in found[kind].items():
            wanted = np.asarray(row["query" if name else "vectors"])
            lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(vectors, axis=1)
            assert ((wanted * np.asarray(vectors)).sum(1) / lengths).min() >= 1 - 1e-6, (kind, name)
