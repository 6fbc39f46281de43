"""An encoder -> the files that transformers, sentence-transformers and onnxruntime read."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ..data.views import tokenize
from ..encoder.head import HEAD_FILE
from ..encoder.poolers import POOLERS
from ..runs.atomic import write_json
from ..runs.record import without_paths
from .parity import CHECKED, compare

ONNX_FILE, POOLING_FILE = "onnx/model.onnx", "1_Pooling/config.json"
MODULE = "sentence_transformers.models."  # the schema that old and new sentence-transformers and TEI read
POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write_encoder(model: Any, stage: Path) -> int:
    """Write the plain encoder and its tokenizer; the number of tokens that it reads.

    A projection goes into a file of its own where the encoder has no place for it.
    """
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
    """Write the modules: Transformer, Pooling and, for a projection that is kept, Dense with tanh."""
    size, pooling = model.config.hidden_size, POOLERS[model.pooler_name].sentence_transformers
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write_json(stage / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    modes = {f"pooling_mode_{name}": name == pooling for name in POOLINGS}
    write_json(stage / POOLING_FILE, {"word_embedding_dimension": size, **modes, "include_prompt": True})
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
            "__version__": versions(packages),
            "model_type": "SentenceTransformer",
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )


def versions(packages: Mapping[str, str]) -> dict[str, str]:
    """Name -> version of those packages that are installed."""
    found = {}
    for name, package in packages.items():
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(package)
    return found


def write_refusal(model: Any, stage: Path) -> None:
    """Write modules that sentence-transformers cannot load, where it has none for how the encoder pools.

    Without any it would pool by mean and say nothing; its error names the module that it does not find.
    """
    name = f"Pooler_{model.pooler_name}_of_hf_focalcse_has_no_counterpart_in_sentence_transformers"
    write_json(stage / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": MODULE + name}])


def write_onnx(model: Any, stage: Path, limit: int) -> float:
    """Write ids and mask -> last_hidden_state and sentence_embedding; the lowest cosine to torch.

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
        warnings.simplefilter("ignore")  # of the tracer, about shapes; the check below covers them
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
