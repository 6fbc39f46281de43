"""What a user of plain transformers does to get an encoder's vectors, as lines of Python over its output."""

from __future__ import annotations

from typing import Any

from ..encoder.poolers import pooler_of
from ..encoder.tail import code_of

NAME = "{name}"  # stands for the folder or repository in the lines


def plain_steps(model: Any) -> dict[str, Any]:
    """The class that reads the encoder, the prompt before each text, and the lines before, of and after pooling.

    They are over ``texts``, ``output``, ``mask`` (B, L, 1) and ``vectors``; a projection is not among them.
    """
    row, prompt = pooler_of(model.pooler_name), model.unpooled
    rows = model.config.focal_cl.get("modules", [])
    first = (3 if row.averaged else 2) + (model.projection_use == "always")
    folders = [f"{first + i}_{of['type']}" for i, of in enumerate(rows)]
    cut = [] if model.truncate_dim is None else [f"vectors = vectors[:, :{model.truncate_dim}]"]
    return {
        "auto": model.family.auto,
        "prompt": model.prompt,
        "template": None if model.template is None else model.template.name,
        "before": [f"mask[:, :{prompt}] = 0"] if prompt else [],
        "pool": row.code.replace("[:, 0]", f"[:, {prompt}]") if prompt else row.code,
        "after": code_of(rows, folders, NAME) + cut,
    }


def dimensions_of(model: Any) -> dict[str, Any]:
    """What run.json says of the vectors of an export, which may be cut to fewer dimensions than in training."""
    return {
        "plain": plain_steps(model),
        "embedding_dimensions": model.get_embedding_dimension(),
        "whole_dimensions": model.dimensions,
        "truncate_dim": model.truncate_dim,
    }
