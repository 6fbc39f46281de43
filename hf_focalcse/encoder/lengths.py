"""How many tokens of a text an encoder reads: those that it has positions for, or that its folder says."""

from __future__ import annotations

from typing import Any

TRAINED_LENGTH = 512  # tokens, of encoders that read any number and whose folder says none: T5
NO_LIMIT = 10**9  # a length from here on stands for none


def positions_of(model: Any) -> int:
    """The longest text in tokens, special ones included."""
    known = getattr(model.config, "max_position_embeddings", None)  # T5 has none
    trained = TRAINED_LENGTH if known is None else int(known - model.first_position)
    return max(trained, (getattr(model.config, "focal_cl", None) or {}).get("positions", 0))


def has_position_table(model: Any) -> bool:
    """Whether the positions of an encoder are rows of a table, which end; others are computed for any number."""
    embeddings = getattr(model.encoder, "embeddings", None)
    return getattr(embeddings, "position_embeddings", None) is not None or model.family.positions is not None


def take_limit(model: Any, tokenizer: Any, limit: int | None) -> None:
    """Let a tokenizer cut where the files of sentence-transformers say, as that library does.

    An encoder without a table of positions then reads as many tokens, be they more than its config.json names, and
    ``focal_cl`` keeps that. limit: None where those files say nothing.
    """
    if limit is not None:
        tokenizer.model_max_length = limit
    elif getattr(model.config, "max_position_embeddings", None) is None and tokenizer.model_max_length < NO_LIMIT:
        limit = int(tokenizer.model_max_length)
    if limit is not None and limit > positions_of(model) and not has_position_table(model):
        model.config.focal_cl["positions"] = limit
