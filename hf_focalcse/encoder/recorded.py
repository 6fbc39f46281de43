"""How a checkpoint says that it pools: ``focal_cl`` in its config, or the files of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from ..compat import find_file
from ..errors import UserError, first_line
from .poolers import POOLERS, resolve_pooler

POOLING_MODES = {"cls": "cls_before_pooler", "mean": "mean", "max": "max"}  # of sentence-transformers -> our pooler
OLDER_MODES = {  # the older schema of the same file: one flag a mode
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}


@dataclass(frozen=True)
class Pooling:
    """A pooler and the use of the projection, see `FocalCLMixin`. source: where a checkpoint records them, in words;
    empty where it does not."""

    pooler: str
    projection: str
    source: str = ""


@contextmanager
def pooled_as(model: Any, pooling: Pooling) -> Iterator[None]:
    """Within it, ``model`` embeds with this pooling; its config and what is trained of it stay as they are."""
    kept = model.pooler_name, model.projection_use
    model.pooler_name, model.projection_use = pooling.pooler, pooling.projection
    try:
        yield
    finally:
        model.pooler_name, model.projection_use = kept


def read_pooling(config: PretrainedConfig, name_or_path: str, **hub: Any) -> Pooling | None:
    """What a folder or a Hub repository records; None where it records nothing, as for plain BERT.

    Raises:
        UserError: its record is damaged, or its modules have no counterpart here.
    """
    return read_record(config, name_or_path) or read_sentence_transformers_pooling(name_or_path, **hub)


def take_recorded(model: Any, name_or_path: str, **hub: Any) -> None:
    """Let a model that was just loaded pool as its checkpoint records, unless its config says how."""
    if model.pooling_is_said:
        model.published = read_record(model.config, name_or_path)
        return
    model.published = read_sentence_transformers_pooling(name_or_path, **hub)
    if model.published is not None:
        model.pooler_name, model.projection_use = model.published.pooler, model.published.projection
        model.pooling_is_said = True


def read_record(config: PretrainedConfig, name_or_path: str) -> Pooling | None:
    """``focal_cl`` of a config, or None where it has none.

    Raises:
        UserError: it does not give pooler and projection as this package writes them.
    """
    record = getattr(config, "focal_cl", None)
    if record is None:
        return None
    if not (isinstance(record, dict) and all(isinstance(record.get(key), str) for key in ("pooler", "projection"))):
        raise UserError(
            f"focal_cl in the config.json of {name_or_path!r} must be a mapping with pooler and projection, not "
            f"{record!r}; correct it, or take it out and choose with --pooler"
        )
    return Pooling(resolve_pooler(record["pooler"]), record["projection"], "focal_cl in config.json")


def read_sentence_transformers_pooling(name_or_path: str, **hub: Any) -> Pooling | None:
    """Pooler and use of the projection by the files of sentence-transformers (both schemas); None without them.

    Raises:
        UserError: its modules have no counterpart here.
    """

    def read(name: str) -> Any:
        path = find_file(name_or_path, name, **hub)
        try:
            return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(
                f"{name} of {name_or_path!r} is not valid JSON ({first_line(error)}); copy it again from its source"
            ) from error

    modules = read("modules.json")
    if modules is None:
        return None
    if not (isinstance(modules, list) and all(isinstance(m, dict) and {"type", "path"} <= set(m) for m in modules)):
        raise UserError(
            f"modules.json of {name_or_path!r} must be a list of modules, each with type and path; copy it again from "
            "its source"
        )
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    known = [["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]]
    if kinds not in known:
        raise UserError(
            f"{name_or_path!r} is a sentence-transformers model of modules {' + '.join(kinds)}; "
            "only Transformer + Pooling (+ Normalize) can be read without --pooler"
        )
    file = f"{modules[1]['path']}/config.json"
    pooling = read(file) or {}
    chosen = (
        [pooling["pooling_mode"]]
        if "pooling_mode" in pooling
        else [mode for mode, flag in OLDER_MODES.items() if pooling.get(flag)]
    )
    if len(chosen) != 1 or chosen[0] not in POOLING_MODES:
        raise UserError(
            f"{name_or_path!r} pools as {chosen or 'unknown'}, which has no counterpart here; choose with --pooler: "
            f"{', '.join(POOLERS)}"
        )
    return Pooling(POOLING_MODES[chosen[0]], "none", file)
