"""What results.json says of an encoder, how evaluation runs it, and what a row of a table calls it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..runs.scores import Results
from .sizes import smaller_sizes


def identify(
    model: Any, name: str, weights: str | None, max_length: int | None = None, bf16: bool = False
) -> dict[str, Any]:
    """What the scores of ``model`` depend on; ``max_length`` is cut to what the encoder takes.

    weights: the sha256 of its file. There is a precision only where it is not float32.
    """
    return {
        "name_or_path": name,
        "pooler": model.pooler_name,
        "projection": model.projection_use,
        "max_length": min(max_length or model.max_length(), model.max_length()),
        "weights_sha256": weights,
    } | {key: value for key, value in further(model, bf16).items() if value}


def further(model: Any, bf16: bool) -> dict[str, Any]:
    """What else scores depend on, where it is not plain."""
    return {
        "precision": "bfloat16" if bf16 else None,
        "prompt": model.prompt,
        "prompt_template": None if model.template is None else model.template.name,
        "truncate_dim": model.truncate_dim,
        "after_pooling": [
            row["type"] for row in model.config.focal_cl.get("modules", []) if row["type"] != "Normalize"
        ],
    }


def sizes_of_encoder(model: Any) -> list[int]:
    """The sizes below that of its vectors at which ``model`` is scored too: those that it was trained for."""
    return smaller_sizes(model.matryoshka_dims, model.get_embedding_dimension())


def as_encoder(
    model: Any, batch_size: int, name: str, weights: str | None, max_length: int | None = None, bf16: bool = False
) -> tuple[Any, dict[str, Any]]:
    """(what `evaluate_sts` encodes with, its identity)."""
    identity = identify(model, name, weights, max_length, bf16)
    encode = partial(model.encode, batch_size=batch_size, max_length=identity["max_length"], bf16=bf16)
    return SimpleNamespace(encode=encode), identity


def as_embedded(pooler: str | None, projection: str | None) -> tuple[str | None, str | None]:
    """One name for one pooling: a projection that only training uses is not there when sentences are encoded."""
    return ("cls_before_pooler", "none") if (pooler, projection) == ("cls", "training") else (pooler, projection)


def describe(results: Results, file: Path) -> str:
    """What a row is called: the model, its pooler and what was done to its vectors."""
    model = results.metadata["model"]
    start = Path(str(model.get("name_or_path", file.parent.name)).rstrip("/")).name
    pooler, _ = as_embedded(model.get("pooler"), model.get("projection"))
    whitened = model.get("whitening") and f"whitened on {model['whitening']}"
    parts = [part for part in (pooler, whitened, model.get("precision")) if part]  # precision: where not float32
    return f"{start} ({', '.join(parts)})" if parts else start
