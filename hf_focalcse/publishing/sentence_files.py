"""An encoder -> the files of sentence-transformers, so that what its base said is said by its export."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..encoder.poolers import pooler_of
from ..encoder.sentence_files import OLDER_MODES
from ..encoder.tail import files_of
from ..runs.atomic import write_json

MODULE = "sentence_transformers.models."  # the schema that old and new sentence-transformers and TEI read
PACKAGES = {"sentence_transformers": "sentence-transformers", "transformers": "transformers", "pytorch": "torch"}


def write_sentence_transformers(model: Any, stage: Path, limit: int) -> list[str]:
    """Write modules.json and what it names: Transformer, the layers that are averaged, Pooling, a projection that is
    kept, and what follows pooling. Returns the folders of the last."""
    lower = bool(model.config.focal_cl.get("lower_case"))
    write_json(stage / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": lower})
    written = [("", "Transformer")]

    def add(kind: str, config: Any, weights: Mapping[str, Any] | None = None) -> str:
        folder = f"{len(written)}_{kind}"
        written.append((folder, kind))
        if config is not None:
            write_json(stage / folder / "config.json", config)
        if weights:
            save_file(dict(weights), stage / folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    row, size = pooler_of(model.pooler_name), model.config.hidden_size
    if row.averaged:
        layers = model.config.num_hidden_layers
        config = {"word_embedding_dimension": size, "layer_start": 0, "num_hidden_layers": layers}
        add("WeightedLayerPooling", config, {"layer_weights": torch.tensor(row.layer_weights(layers))})
        config = json.loads((stage / "config.json").read_text(encoding="utf-8"))
        write_json(stage / "config.json", config | {"output_hidden_states": True})  # else that module is passed over
    add("Pooling", {"word_embedding_dimension": size} | modes(row.sentence_transformers) | pooled_prompt(model))
    if model.projection_use == "always":
        shape = {"in_features": size, "out_features": size, "bias": True}
        weights = {f"linear.{k}": v.detach().contiguous() for k, v in model.projection_linear.state_dict().items()}
        add("Dense", shape | {"activation_function": "torch.nn.modules.activation.Tanh"}, weights)
    after = [add(*part) for part in files_of(model.tail, model.config.focal_cl.get("modules", []))]
    write_json(
        stage / "modules.json",
        [{"idx": i, "name": str(i), "path": path, "type": MODULE + kind} for i, (path, kind) in enumerate(written)],
    )
    write_json(stage / "config_sentence_transformers.json", describe(model))
    return after


def modes(names: tuple[str, ...]) -> dict[str, Any]:
    """The modes of Pooling: a flag each, which every version and TEI read; a list where the order is another."""
    flags = {flag: flag.removeprefix("pooling_mode_") in names for flag in OLDER_MODES}
    if [flag.removeprefix("pooling_mode_") for flag, wanted in flags.items() if wanted] == list(names):
        return flags
    newer = {flag.removeprefix("pooling_mode_"): mode for flag, mode in OLDER_MODES.items()}
    return {"pooling_mode": [newer[name] for name in names]}


def pooled_prompt(model: Any) -> dict[str, bool]:
    return {"include_prompt": bool(model.include_prompt)}


def describe(model: Any) -> dict[str, Any]:
    """config_sentence_transformers.json: what the base's said, with what was changed since."""
    recorded = model.config.focal_cl
    content = {
        "__version__": versions(PACKAGES),
        "model_type": "SentenceTransformer",
        "prompts": model.own_prompts(),
        "default_prompt_name": model.default_prompt_name,
        "similarity_fn_name": model.similarity_fn_name,
    }
    truncated = {} if model.truncate_dim is None else {"truncate_dim": model.truncate_dim}
    sizes = {"matryoshka_dims": model.matryoshka_dims} if model.matryoshka_dims else {}
    return recorded.get("carried", {}) | content | truncated | sizes


def versions(packages: Mapping[str, str]) -> dict[str, str]:
    """Name -> version of those packages that are installed."""
    found = {}
    for name, package in packages.items():
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(package)
    return found
