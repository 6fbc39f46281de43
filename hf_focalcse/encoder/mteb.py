"""What mteb asks of a model that it calls directly: a description, and texts and prompts by its rules."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

ASKED = ("task_metadata", "hf_split", "hf_subset", "prompt_type")  # what mteb adds to the arguments of `encode`


def texts_of(loader: Iterable[Mapping[str, Any]]) -> list[str]:
    """The texts of all batches that an mteb loader gives."""
    return [text for batch in loader for text in batch["text"]]


def prompt_name_of(prompts: Mapping[str, str], task: Any, kind: str | None) -> str | None:
    """The name of the prompt for a task: the most specific of those that the model has, None where it has none of
    them. kind: "query", "document" or None."""
    wanted = [f"{task.name}-{kind}", task.name, f"{task.type}-{kind}", task.type, kind]
    return next((name for name in wanted if name in prompts), None)


def describe(model: Any) -> Any:
    """The ``ModelMeta`` of a model.

    Its revision is made from weights and pooling: mteb keeps results by name and revision, and would give an encoder
    the scores of the one that lay in the same folder before.
    """
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    name = str(model.config.name_or_path or "encoder")
    return ModelMeta.create_empty(
        overwrites={
            "name": f"local/{Path(name).resolve().name}" if Path(name).is_dir() or "/" not in name else name,
            "revision": fingerprint(model),
            "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
            "max_tokens": float(model.max_seq_length),
            "embed_dim": model.get_embedding_dimension(),
            "framework": ["PyTorch", "Transformers"],
            "similarity_fn_name": ScoringFunction(model.similarity_fn_name),
            "use_instructions": any(model.prompts.values()),
        }
    )


def fingerprint(model: Any) -> str:
    """Forty hex digits of the weights, the pooling, the lengths and the prompts."""
    said = [model.pooler_name, model.projection_use, model.max_seq_length, model.truncate_dim, model.prompts]
    sums = torch.stack([value.detach().sum().float().cpu() for value in model.state_dict().values()])
    key = (repr(said), sums.numpy().tobytes())
    if model.known_fingerprint is None or model.known_fingerprint[0] != key:  # mteb asks again and again
        digest = hashlib.sha256(key[0].encode())
        for value in model.state_dict().values():
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        model.known_fingerprint = key, digest.hexdigest()[:40]
    return str(model.known_fingerprint[1])
