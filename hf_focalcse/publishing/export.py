"""Checkpoint -> a folder that transformers, sentence-transformers and TEI read to the same vectors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import save_file

from ..data.views import tokenize
from ..encoder.head import HEAD_FILE
from ..encoder.loading import load_model, require_projection
from ..encoder.poolers import POOLERS
from ..errors import UserError
from ..evaluation import Results
from ..runs.record import RUN_FILE, RunRecord, file_sha256, without_paths, write_json
from .card import EXAMPLES, eval_result_files, render, write_card
from .merge import merge_cards
from .plots import draw_plots

RESULTS_FILE, MANIFEST, WEIGHTS, ONNX_FILE = "results.json", "export.json", "model.safetensors", "onnx/model.onnx"
FORMAT = 1
LOWEST_COSINE = 1 - 1e-6  # between a vector of the checkpoint and the same from the export
MODULE = "sentence_transformers.models."  # the schema that old and new sentence-transformers and TEI read
POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
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
from transformers import AutoModel, AutoTokenizer
folder = given["folder"]
model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
batch = AutoTokenizer.from_pretrained(folder)(given["texts"], padding=True, truncation=True, return_tensors="pt")
mask = batch["attention_mask"].unsqueeze(-1)
with torch.inference_mode():
    output = model.eval()(**batch, output_hidden_states=given["all_layers"])
    vectors = eval(given["code"])
    if given["head"]:
        from safetensors.torch import load_file
        head = load_file(folder + "/" + given["head"])
        vectors = torch.tanh(vectors @ head["mlp.dense.weight"].T + head["mlp.dense.bias"])
numpy.save(given["out"] + "/transformers.npy", vectors.float().numpy())
if given["sentence_transformers"]:
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(folder, device="cpu", local_files_only=True)
    numpy.save(given["out"] + "/sentence-transformers.npy", model.encode(given["texts"]))
print(json.dumps({
    "keys": sorted(str(key) for name in report if name.endswith("_keys") for key in report[name]),
    "foreign": "hf_focalcse" in sys.modules,
}))
"""


def export_model(
    checkpoint: str | Path,
    folder: str | Path | None = None,
    *,
    sentence_transformers: bool = True,
    onnx: bool = False,
    publication: dict[str, Any] | None = None,
) -> tuple[Path, dict[str, float]]:
    """The published folder (default: ``hub`` in the checkpoint) and the lowest cosine to the checkpoint's vectors, by
    library; whole or not at all. publication: repo_id, license, language for the card.

    Without run.json in the checkpoint there is no card, so that the folder can be used but not pushed.

    Raises:
        UserError: sentence-transformers cannot express the pooler or is not installed, results.json belongs to other
            weights, the vectors differ, or the folder cannot be written.
    """
    checkpoint = Path(checkpoint)
    folder = Path(folder) if folder else checkpoint / "hub"
    if folder.exists() and not (folder / MANIFEST).exists() and any(folder.iterdir()):
        raise UserError(f"{folder} holds something that is no export; give another --output_dir")
    if not checkpoint.is_dir():
        raise UserError(f"there is no folder {checkpoint}; give the output folder of a training run")
    model = load_model(str(checkpoint)).float().eval()
    require_projection(model, str(checkpoint))
    check_libraries(model.pooler_name, sentence_transformers, onnx)
    check_records(model, checkpoint)
    with staged(folder) as stage:
        limit = write_encoder(model, stage)
        if sentence_transformers:
            write_sentence_transformers(model, stage, limit)
        found = check_vectors(model, stage, sentence_transformers)
        if onnx:
            found["onnxruntime"] = write_onnx(model, stage, limit)
        if (checkpoint / RUN_FILE).exists():
            vectors = model.encode(list(EXAMPLES))
            added = {
                "sentence_transformers": sentence_transformers,
                "onnx": onnx,
                "max_seq_length": limit,
                "example_cosine": round(float(lowest_cosine(vectors[:1], vectors[1:])), 4),
            }
            write_records(model, checkpoint, stage, (publication or {}) | added)
            keep_hand_made(folder, stage / "README.md")
        write_manifest(stage)
    return folder, found


def check_libraries(pooler: str, sentence_transformers: bool, onnx: bool) -> None:
    """That an export of this kind can be made here.

    Raises:
        UserError: sentence-transformers cannot express the pooler, or a library is missing.
    """
    if sentence_transformers and POOLERS[pooler].sentence_transformers is None:
        can = ", ".join(name for name, row in POOLERS.items() if row.sentence_transformers)
        raise UserError(
            f"sentence-transformers pools the last layer alone, so it cannot express pooler {pooler}; "
            f"--no_sentence_transformers exports for transformers alone (it can express {can})"
        )
    if sentence_transformers and find_spec("sentence_transformers") is None:
        raise UserError(
            "an export is checked in sentence-transformers, which is not installed: "
            "pip install 'hf_focalcse[export]', or export with --no_sentence_transformers"
        )
    if onnx and (find_spec("onnx") is None or find_spec("onnxruntime") is None):
        raise UserError("--onnx needs onnx and onnxruntime: pip install 'hf_focalcse[onnx]'")


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A neighbouring folder that takes the place of ``folder`` once it is complete, and is gone otherwise."""
    stage, old = (folder.with_name(f".{folder.name}.{what}-{os.getpid()}") for what in ("part", "old"))
    try:
        stage.mkdir(parents=True)
        yield stage
        if folder.exists():
            os.replace(folder, old)
        os.replace(stage, folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(
            f"the export to {folder} could not be written ({reason}); the checkpoint is untouched, "
            "make room or give another --output_dir"
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


# ---- files


def write_encoder(model: Any, stage: Path) -> int:
    """The plain encoder with its tokenizer, and the projection where the encoder has no place for it; tokens read."""
    limit = int(model.max_length())
    architectures = model.config.architectures
    model.encoder.save_pretrained(stage)
    model.config.architectures = architectures  # shared with the encoder, which wrote its own
    tokenizer = model.tokenizer
    before, tokenizer.model_max_length = tokenizer.model_max_length, limit
    tokenizer.save_pretrained(stage)
    tokenizer.model_max_length = before
    if not model.encoder_has_pooler and model.projection_use != "none":
        head = {f"mlp.{k}": v.detach().contiguous() for k, v in model.mlp.state_dict().items()}
        save_file(head, stage / HEAD_FILE, metadata={"format": "pt"})
    for name in ("config.json", "tokenizer_config.json"):
        path = stage / name
        content = json.loads(path.read_text(encoding="utf-8"))
        content.pop("_name_or_path", None)
        content.pop("name_or_path", None)
        write_json(path, without_paths(content))
    return limit


def write_sentence_transformers(model: Any, stage: Path, limit: int) -> None:
    """Transformer, Pooling and, for a projection that is kept, Dense with tanh."""
    size, pooling = model.config.hidden_size, POOLERS[model.pooler_name].sentence_transformers
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write_json(stage / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    modes = {f"pooling_mode_{name}": name == pooling for name in POOLINGS}
    write_json(stage / "1_Pooling/config.json", {"word_embedding_dimension": size, **modes, "include_prompt": True})
    if model.projection_use == "always":
        modules.append(("2_Dense", "Dense"))
        shape = {"in_features": size, "out_features": size, "bias": True}
        write_json(stage / "2_Dense/config.json", shape | {"activation_function": "torch.nn.modules.activation.Tanh"})
        weights = {f"linear.{k}": v.detach().contiguous() for k, v in model.projection_linear.state_dict().items()}
        save_file(weights, stage / "2_Dense/model.safetensors", metadata={"format": "pt"})
    write_json(
        stage / "modules.json",
        [{"idx": i, "name": str(i), "path": path, "type": MODULE + kind} for i, (path, kind) in enumerate(modules)],
    )
    packages = {"sentence_transformers": "sentence-transformers", "transformers": "transformers", "pytorch": "torch"}
    write_json(
        stage / "config_sentence_transformers.json",
        {
            "__version__": {name: version(package) for name, package in packages.items()},
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )


def write_onnx(model: Any, stage: Path, limit: int) -> float:
    """Ids and mask -> last_hidden_state and sentence_embedding; the lowest cosine to torch.

    Raises:
        UserError: onnxruntime gives other vectors.
    """
    import onnxruntime
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            row = POOLERS[model.pooler_name]
            output = model.encoder(
                input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=row.all_layers
            )
            layers = output.hidden_states if row.all_layers else (output.last_hidden_state,)
            vectors = row.pool(layers, attention_mask, input_ids)
            if model.projection_use == "always":
                vectors = torch.tanh(model.projection_linear(vectors))
            return output.last_hidden_state, vectors

    path = stage / ONNX_FILE
    path.parent.mkdir()
    tokens = tokenize(model.tokenizer, CHECKED[:2], limit)
    inputs, outputs = ["input_ids", "attention_mask"], ["last_hidden_state", "sentence_embedding"]
    axes = {name: {0: "batch", 1: "length"} for name in [*inputs, outputs[0]]} | {outputs[1]: {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, on shapes that the check below covers
        torch.onnx.export(
            *(Encoder().eval(), tuple(tokens[name] for name in inputs), str(path)),
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=18,
            dynamo=False,  # the newer exporter writes this machine's paths into the file
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tokens = tokenize(model.tokenizer, CHECKED, limit)
    found = session.run(outputs[1:], {name: tokens[name].numpy() for name in inputs})[0]
    return compare("onnxruntime", model.encode(CHECKED), found)


def write_records(model: Any, checkpoint: Path, stage: Path, publication: dict[str, Any]) -> None:
    """run.json and results.json as they may be published, naming the weights in the folder; plots, card."""
    record = RunRecord.load(checkpoint).publishable()
    published = weights_sha256(stage)
    head = HEAD_FILE if (stage / HEAD_FILE).exists() else None
    names = {"weights_sha256": published, "checkpoint_sha256": weights_sha256(checkpoint), "projection_file": head}
    kept = {key: value for key, value in publication.items() if value is not None}
    said = {key: value for key, value in record.publication.items() if key != "wanted"}
    record = replace(record, model=record.model | names, publication=said | kept)
    record.save(stage)
    if (checkpoint / RESULTS_FILE).exists():
        results = Results.read(checkpoint / RESULTS_FILE)
        results.metadata["model"] |= {"weights_sha256": published}
        publishable(results, record).write(stage / RESULTS_FILE)
    write_pages(stage)


def keep_hand_made(former: Path, card: Path) -> None:
    """Bring what was written by hand into the card of the export that is replaced into the new one."""
    if is_export(former) and (former / "README.md").exists():
        generated = json.loads((former / MANIFEST).read_text(encoding="utf-8"))["card"]
        by_hand = (former / "README.md").read_text(encoding="utf-8")
        card.write_text(merge_cards(generated, by_hand, card.read_text(encoding="utf-8"))[0], encoding="utf-8")


def check_records(model: Any, checkpoint: Path) -> None:
    """That run.json and results.json, where there are any, belong to the weights beside them.

    Raises:
        UserError: they do not.
    """
    trained = weights_sha256(checkpoint)
    if (checkpoint / RUN_FILE).exists():
        recorded = RunRecord.load(checkpoint).model.get("weights_sha256")
        if recorded not in (None, trained):
            raise UserError(f"{checkpoint / RUN_FILE} belongs to other weights than {WEIGHTS} there; train again")
    if (checkpoint / RESULTS_FILE).exists():
        measured = Results.read(checkpoint / RESULTS_FILE).metadata["model"]
        asked = {"weights_sha256": trained, "pooler": model.pooler_name, "projection": model.projection_use}
        for key, value in asked.items():
            if measured.get(key) != value:
                raise UserError(
                    f"{checkpoint / RESULTS_FILE} was measured with {key} {measured.get(key)}, not {value}; "
                    "run `focalcse eval` on the folder again"
                )


def weights_sha256(folder: Path) -> str | None:
    """None where the weights lie in several files."""
    return file_sha256(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else None


def publishable(results: Results, record: RunRecord) -> Results:
    """Results without paths of this machine."""
    details = without_paths(results.metadata, [of["source"] for of in results.metadata["data"].values()])
    details["model"]["name_or_path"] = record.publication.get("repo_id") or Path(details["model"]["name_or_path"]).name
    return Results(results.scores, details)


def write_pages(stage: Path) -> None:
    """What follows from the records: pictures, scores as the Hub reads them, the card."""
    draw_plots(stage)
    shutil.rmtree(stage / ".eval_results", ignore_errors=True)
    if (stage / RESULTS_FILE).exists():
        for name, content in eval_result_files(Results.read(stage / RESULTS_FILE)).items():
            (stage / name).parent.mkdir(exist_ok=True)
            (stage / name).write_text(content, encoding="utf-8")
    write_card(stage)


def write_manifest(stage: Path, kept: dict[str, str] | None = None) -> None:
    """export.json: the files with their sha256 (and ``kept``, which lie elsewhere), and the card as generated."""
    names = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
    files = {name: file_sha256(stage / name) for name in names if name not in ("README.md", MANIFEST)}
    card = render(stage) if (stage / RUN_FILE).exists() else None
    write_json(stage / MANIFEST, {"format": FORMAT, "files": {**(kept or {}), **files}, "card": card})


# ---- later


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def update_export(folder: Path, publication: dict[str, Any], results: Results | None = None) -> None:
    """Give an export another target, licence or language, or new scores; the card keeps what was written by hand.

    The weights may lie elsewhere. Raises UserError where it has no run.json, or the scores are of other weights.
    """
    record = RunRecord.load(folder)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    wanted = {key: value for key, value in publication.items() if value is not None}
    changed = any(record.publication.get(key) != value for key, value in wanted.items())
    if not changed and results is None:
        return
    record.publication |= wanted
    record.save(folder)
    if results is not None:
        if results.metadata["model"].get("weights_sha256") != record.model["weights_sha256"]:
            raise UserError(
                f"the scores were measured on weights {results.metadata['model'].get('weights_sha256')}, "
                f"but {record.publication.get('repo_id')} holds {record.model['weights_sha256']}; evaluate that one"
            )
        results = publishable(results, record)
        if (folder / RESULTS_FILE).exists():
            results = results.merge(Results.read(folder / RESULTS_FILE))
        results.write(folder / RESULTS_FILE)
    card = folder / "README.md"
    by_hand = card.read_text(encoding="utf-8") if card.exists() else ""
    write_pages(folder)
    generated = card.read_text(encoding="utf-8")
    card.write_text(merge_cards(manifest["card"], by_hand, generated)[0], encoding="utf-8")
    write_manifest(folder, manifest["files"])


# ---- the check


def check_vectors(model: Any, stage: Path, sentence_transformers: bool) -> dict[str, float]:
    """Load the folder in a fresh process that knows nothing of this package; the lowest cosine, by library.

    Raises:
        UserError: it does not load, loads with missing or unexpected weights, or gives other vectors.
    """
    row = POOLERS[model.pooler_name]
    always = model.projection_use == "always"
    with tempfile.TemporaryDirectory() as out:
        given = {
            "folder": str(stage.resolve()),
            "out": out,
            "texts": CHECKED,
            "all_layers": row.all_layers,
            "code": "output.pooler_output" if always and model.encoder_has_pooler else row.code,
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
