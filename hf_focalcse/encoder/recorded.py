"""How a checkpoint says that it pools: ``focal_cl`` in its config, or the files of sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..data.template import Template
from ..errors import UserError
from .poolers import resolve_pooler
from .prompts import add_prompt, choose_prompt
from .sentence_files import read_sentence_files
from .source import Source
from .tail import build_tail

PLAIN: dict[str, Any] = {  # what `focal_cl` in a config says besides pooler and projection, with what it leaves out
    "template": None,
    "include_prompt": True,
    "modules": [],
    "prompts": {},
    "default_prompt_name": None,
    "similarity": "cosine",
    "truncate_dim": None,
    "matryoshka_dims": [],
    "lower_case": False,
    "carried": {},
}


@dataclass(frozen=True)
class Pooling:
    """A pooler and the use of the projection, see `FocalCLMixin`. source: where a checkpoint records them, in words;
    empty where it does not. prompt, template: what stands before or around every text, "" for nothing; None: what the
    encoder has now."""

    pooler: str
    projection: str
    source: str = ""
    prompt: str | None = None
    template: str | None = None


@contextmanager
def pooled_as(model: Any, pooling: Pooling) -> Iterator[None]:
    """Within it, ``model`` embeds with this pooling, prompt and template; its config and what is trained of it stay as
    they are."""
    kept = model.pooler_name, model.projection_use
    around = model.prompts, model.default_prompt_name, model.template
    model.pooler_name, model.projection_use = pooling.pooler, pooling.projection
    if pooling.prompt is not None:
        model.prompts, model.default_prompt_name = add_prompt(model.prompts, pooling.prompt)
    if pooling.template is not None:
        model.template = Template.of(pooling.template) if pooling.template else None
    try:
        yield
    finally:
        model.pooler_name, model.projection_use = kept
        model.prompts, model.default_prompt_name, model.template = around


def take_recorded(model: Any, name_or_path: str, **hub: Any) -> None:
    """Let a model that was just loaded pool as its checkpoint records, unless its config says how."""
    if model.pooling_is_said:
        model.published = read_record(model.config.focal_cl, name_or_path)
        return
    files = read_sentence_files(Source(name_or_path, hub=hub))
    if any(row["type"] != "Normalize" for row in files.modules) or files.default_prompt_name or files.truncate_dim:
        raise UserError(
            f"{name_or_path!r} does more with a text than its encoder and pooling, and only "
            "hf_focalcse.load_model reads that; load it with load_model"
        )
    record = {key: getattr(files, key) for key, plain in PLAIN.items() if getattr(files, key) != plain}
    model.config.focal_cl |= record
    model.take_record(record)
    model.tail, model._limit = build_tail(model.dimensions, files.modules), files.limit
    model.published = (
        None if files.pooler is None else Pooling(files.pooler, "none", files.source, prompt="", template="")
    )
    if model.published is not None:
        model.pooler_name, model.projection_use = model.published.pooler, model.published.projection
        model.pooling_is_said = True


def read_record(record: Any, name_or_path: str) -> Pooling:
    """``focal_cl`` of a config.

    Raises:
        UserError: it does not give pooler and projection as this package writes them.
    """
    if not (isinstance(record, dict) and all(isinstance(record.get(key), str) for key in ("pooler", "projection"))):
        raise UserError(
            f"focal_cl in the config.json of {name_or_path!r} must be a mapping with pooler and projection, not "
            f"{record!r}; correct it, or take it out and choose with --pooler"
        )
    prompt = choose_prompt(record.get("prompts", {}), record.get("default_prompt_name"))
    return Pooling(
        resolve_pooler(record["pooler"]),
        record["projection"],
        "focal_cl in config.json",
        prompt,
        record.get("template") or "",
    )
