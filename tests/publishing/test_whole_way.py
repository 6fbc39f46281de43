"""An encoder with prompts and Normalize, as e5 is published: trained, exported, pushed, and read from the Hub again,
with every key of every JSON file of its base."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_hub import FakeHub
from patience import PATIENCE
from tiny_run import TOKEN

from hf_focalcse.cli import main as cli
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.publishing.export import export_model

REPO = "org/e5-trained"
TEXTS = ["a man plays the guitar", "the old woman reads a book", "dogs can't run", "état"]
PUSH_AND_READ = """
import json, sys
from hf_focalcse.publishing.hub import Target, push
push(sys.argv[1], Target(sys.argv[2]))
from huggingface_hub import snapshot_download
from sentence_transformers import SentenceTransformer
model, texts = SentenceTransformer(sys.argv[2], device="cpu", trust_remote_code=False), json.loads(sys.argv[3])
vectors = {name: model.encode(texts, prompt_name=name).tolist() for name in ("query", "passage")}
vectors["default"] = model.encode(texts).tolist()
print(json.dumps({"vectors": vectors, "folder": snapshot_download(sys.argv[2]), "limit": model.max_seq_length}))
"""
CHANGED = {  # file -> key: why its value may be another one
    "config.json": {
        "transformers_version": "of the library that saved it",
        "use_cache": "Trainer turns it off, and a text is read once",
    },
    "config_sentence_transformers.json": {
        "__version__": "of the libraries that saved it",
        "default_prompt_name": "it was trained with this prompt",
    },
    "1_Pooling/config.json": {},
    "modules.json": {},
    "sentence_bert_config.json": {},
    "tokenizer_config.json": {},
    "tokenizer.json": {},
}


def flat(content, place=""):
    """Key path -> value of everything that a JSON file holds."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return {k: v for key, of in items for k, v in flat(of, f"{place}/{key}").items()} or {place: content}
    return {place: content}


@pytest.mark.slow
def test_everything_that_the_base_says_is_there_again(shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = shared / "prototypes/encoder_zoo.py"
    subprocess.run([sys.executable, str(script), "zoo", "xlm_roberta_mean"], check=True, capture_output=True)
    base = Path("zoo/xlm_roberta_mean")
    Path("text.txt").write_text("".join(f"{text} {i}\n" for i in range(8) for text in TEXTS))
    line = f"--model_name_or_path {base} --train_file text.txt --max_steps 2 --eval_strategy no --use_cpu "
    cli.run("train", f"{line} --prompt_name query --per_device_train_batch_size 8 --output_dir out".split())
    folder, _ = export_model("out", publication={"repo_id": REPO, "license": "mit", "language": "en"})

    with FakeHub("--token", TOKEN) as hub:
        end = subprocess.run(
            [sys.executable, "-c", PUSH_AND_READ, str(folder), REPO, json.dumps(TEXTS)],
            env=hub.environment(tmp_path / "home", TOKEN), capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert end.returncode == 0, end.stderr
    read = json.loads(end.stdout.splitlines()[-1])

    files = {file.relative_to(base).as_posix() for file in base.rglob("*.json")}
    assert files == CHANGED.keys()
    for file, reasons in CHANGED.items():
        one, other = (flat(json.loads((Path(at) / file).read_text("utf-8"))) for at in (base, read["folder"]))
        differ = {key for key in one if key not in other or other[key] != one[key]}
        assert {key.split("/")[1] for key in differ} <= reasons.keys(), (file, differ)
    said = json.loads((Path(read["folder"]) / "config_sentence_transformers.json").read_text())
    assert said["default_prompt_name"] == "query" and read["limit"] == 128
    ours = load_model("out")
    for name, vectors in read["vectors"].items():
        expected = ours.encode(TEXTS, **({} if name == "default" else {"prompt_name": name}))
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.abs(ours.encode(TEXTS) - load_model(str(base)).encode(TEXTS, prompt_name="query")).max() > 1e-5
    card = (Path(read["folder"]) / "README.md").read_text()
    assert "query: " in card and "--default-prompt-name query" in card
