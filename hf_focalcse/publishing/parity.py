"""Whether the libraries that read an export give the checkpoint's vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..encoder.poolers import pooler_of
from ..encoder.saving import HEAD_FILE
from ..errors import UserError
from .plain import plain_steps
from .usage import EXAMPLES

LOWEST_COSINE = 1 - 1e-6  # between a vector of the checkpoint and the same from the export
CHECKED = [  # sentences whose vectors are compared
    *EXAMPLES,
    "Yes",
    "The committee, which had met twice before, could not agree on a date; so it met again.",
    "Ünïcödé, 漢字 and emoji 🙂 are text too.",
    "1,234.5 != 12345",
    "UPPER CASE and lower case",
    "a much longer text " * 300,  # beyond what most encoders read: both sides must cut at the same token
]
CHECK = """
import json, sys
given = json.load(open(sys.argv[1], encoding="utf-8"))
import numpy, torch
import transformers
folder, plain = given["folder"], given["plain"]
options = {"trust_remote_code": False, "local_files_only": True}
model, report = getattr(transformers, plain["auto"]).from_pretrained(folder, output_loading_info=True, **options)
texts = given["read"]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
mask = batch["attention_mask"].unsqueeze(-1).clone()
with torch.inference_mode():
    output = model.eval()(**batch, output_hidden_states=given["all_layers"])
    for line in plain["before"]:
        exec(line)
    vectors = eval(given["code"])
    if given["head"]:
        from safetensors.torch import load_file
        head = load_file(folder + "/" + given["head"])
        vectors = torch.tanh(vectors @ head["mlp.dense.weight"].T + head["mlp.dense.bias"])
    from safetensors.torch import load_file
    from transformers.utils import cached_file
    for line in plain["after"]:
        exec(line.replace("{name}", folder))
numpy.save(given["out"] + "/transformers.npy", vectors.float().numpy())
if given["sentence_transformers"]:
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(folder, device="cpu", local_files_only=True, trust_remote_code=False)
    numpy.save(given["out"] + "/sentence-transformers.npy", model.encode(given["texts"]))
print(json.dumps({
    "keys": sorted(str(key) for name in report if name.endswith("_keys") for key in report[name]),
    "foreign": "hf_focalcse" in sys.modules,
}))
"""


def check_vectors(model: Any, stage: Path, sentence_transformers: bool) -> dict[str, float]:
    """Load the folder in a fresh process that does not import this package; the lowest cosine, by library.

    Raises:
        UserError: it does not load, loads with missing or unexpected weights, gives other vectors, or the process
            had imported this package.
    """
    row, plain = pooler_of(model.pooler_name), plain_steps(model)
    always = model.projection_use == "always"
    with tempfile.TemporaryDirectory() as out:
        given = {
            "folder": str(stage.resolve()),
            "out": out,
            "texts": CHECKED,
            "read": model.as_read(CHECKED, model.prompt, model.max_length())[0],
            "all_layers": row.all_layers,
            "plain": plain,
            "code": "output.pooler_output" if always and model.encoder_has_pooler else plain["pool"],
            "head": HEAD_FILE if always and not model.encoder_has_pooler else None,
            "sentence_transformers": sentence_transformers,
        }
        (Path(out) / "given.json").write_text(json.dumps(given), encoding="utf-8")
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CHECK, f"{out}/given.json"],
            env=os.environ | quiet, capture_output=True, text=True, cwd=out,
        )  # fmt: skip
        if done.returncode:
            raise UserError(f"the export does not load: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        said = json.loads(done.stdout.splitlines()[-1])
        if said["foreign"]:
            raise UserError(
                "the process that reads the export loaded hf_focalcse, so it does not show that the export is read "
                "without it; take hf_focalcse out of what Python imports at its start (sitecustomize, .pth files)"
            )
        if said["keys"]:
            raise UserError(f"AutoModel does not find all weights of the export: {', '.join(said['keys'][:5])}")
        expected = model.encode(CHECKED)
        return {
            file.stem: compare(file.stem, expected, np.load(file)) for file in sorted(Path(out).glob("*.npy"))[::-1]
        }


def compare(library: str, expected: np.ndarray, found: np.ndarray) -> float:
    """The lowest cosine of two arrays (N, D), row by row.

    Raises:
        UserError: it is below `LOWEST_COSINE`.
    """
    lowest = lowest_cosine(expected, found) if expected.shape == found.shape else -1.0
    if not lowest >= LOWEST_COSINE:
        raise UserError(f"{library} gives other vectors than the checkpoint: the lowest cosine is {lowest:.8f}")
    return lowest


def lowest_cosine(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / lengths).min())
