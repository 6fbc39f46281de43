"""What evaluation encodes with, and what results.json says of it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any


def as_encoder(
    model: Any, batch_size: int, name: str, weights: str | None, max_length: int | None = None, bf16: bool = False
) -> tuple[Any, dict[str, Any]]:
    """(an object with ``encode``, the identity of what it encodes with).

    Args:
        model: an encoder of `load_model`.
        batch_size: sentences that go through it together.
        name: what the encoder was loaded by.
        weights: sha256 of its weights; None where they lie in several files.
        max_length: tokens kept of a sentence; by default, and at most, all that the encoder can read.
        bf16: matrix products in bfloat16; the identity names a precision only where it is not float32.
    """
    limit = min(max_length or model.max_length(), model.max_length())
    identity = {
        "name_or_path": name,
        "pooler": model.pooler_name,
        "projection": model.projection_use,
        "max_length": limit,
        "weights_sha256": weights,
    } | ({"precision": "bfloat16"} if bf16 else {})
    encode = partial(model.encode, batch_size=batch_size, max_length=limit, bf16=bf16)
    return SimpleNamespace(encode=encode), identity
