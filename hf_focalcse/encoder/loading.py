"""A folder or a Hub id -> an encoder with its tokenizer, which pools as the checkpoint says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging

from ..compat import find_file
from ..errors import UserError, first_line
from .auto import MODELS, AutoModelForFocalCL
from .poolers import POOLERS
from .tokenizer import load_tokenizer

POOLING_MODES = {"cls": "cls_before_pooler", "mean": "mean", "max": "max"}  # of sentence-transformers -> our pooler
OLDER_MODES = {  # the older schema of the same file: one flag a mode
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}


def load_model(
    name_or_path: str,
    pooler: str | None = None,
    projection: str | None = None,
    dropout: float | None = None,
    revision: str | None = None,
) -> Any:
    """A ``…ForFocalCL`` encoder with its tokenizer, from a folder or a Hub id.

    Weights are read from safetensors only. They are float32 whatever they were saved as, since training starts here.

    pooler, projection: default to what the checkpoint records (``focal_cl`` in its config, else the files of
    sentence-transformers). dropout: sets every dropout rate of the encoder, under the names that its family uses.

    Raises:
        UserError: no such folder or repository, a type of encoder without a head here, no safetensors, missing
            weights, or nothing says how the encoder pools.
    """
    folder = require_folder(name_or_path)
    if revision is not None and folder.is_dir():
        raise UserError(
            f"revision {revision!r} is given for the folder {name_or_path!r}; only a Hub id has them, so leave it out"
        )
    if folder.is_dir():
        name_or_path = str(folder)
    hub = {"revision": revision} if revision else {}
    config = load_config(name_or_path, folder.is_dir(), **hub)
    if dropout is not None:
        set_dropout(config, dropout)
    record = read_record(config, name_or_path) or read_sentence_transformers_pooling(name_or_path, **hub)
    if pooler is None:
        if record is None:
            raise UserError(
                f"nothing in {name_or_path!r} says how it pools; choose with --pooler: {', '.join(POOLERS)}"
            )
        pooler, projection = record["pooler"], projection or record["projection"]
    config.focal_cl = (getattr(config, "focal_cl", None) or {}) | {"pooler": pooler, "projection": projection}
    model, info = load_weights(name_or_path, config, **hub)
    model.tokenizer = load_tokenizer(name_or_path, **hub)
    check_tokenizer(model, name_or_path)
    projection_missing = check_weights(model, info, name_or_path)
    if not model.encoder_has_pooler:
        projection_missing = not model.load_head(name_or_path, **hub)
    model.projection_is_random = projection_missing
    return model


def require_folder(name_or_path: str) -> Path:
    """A model's name as a path, which exists unless the name can be a Hub id.

    Raises:
        UserError: there is no such folder, or it holds no checkpoint.
    """
    folder = Path(name_or_path).expanduser()
    looks_local = folder.is_absolute() or name_or_path.startswith((".", "~")) or name_or_path.count("/") > 1
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(
                f"folder {name_or_path!r} has no config.json, so it is not a checkpoint; give the folder that has one"
            )
    elif folder.exists() or looks_local:
        raise UserError(f"there is no model folder {name_or_path!r}; give a checkpoint folder or a Hub id (org/name)")
    return folder


# ---- config


def load_config(name_or_path: str, is_folder: bool, **hub: Any) -> PretrainedConfig:
    """The config of a checkpoint.

    Raises:
        UserError: it cannot be read, or the encoder is of a type that has no head here.
    """
    try:
        config = AutoConfig.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError) as error:
        if is_folder:
            raise UserError(
                f"the config.json of {name_or_path!r} cannot be used ({first_line(error)}); give the folder "
                "of a model that transformers can load"
            ) from error
        raise UserError(
            f"no model {name_or_path!r}: there is no such folder and it could not be loaded from the Hub "
            f"({first_line(error)}); check the name, or give the path of a downloaded folder"
        ) from error
    if type(config) not in MODELS:
        families = ", ".join(sorted(c.model_type for c in MODELS))
        raise UserError(f"model {name_or_path!r} is of type {config.model_type!r}; supported are: {families}")
    return config


def set_dropout(config: PretrainedConfig, rate: float) -> None:
    """Set every dropout rate of an encoder's config.

    Raises:
        UserError: the rate is not in [0, 1).
    """
    if not 0 <= rate < 1:
        raise UserError(f"dropout is {rate}; it must be at least 0 and below 1 (SimCSE uses 0.1)")
    for name in MODELS[type(config)].family.dropout:
        setattr(config, name, rate)


# ---- how a checkpoint says that it pools


def read_record(config: PretrainedConfig, name_or_path: str) -> dict[str, Any] | None:
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
    return record


def read_sentence_transformers_pooling(name_or_path: str, **hub: Any) -> dict[str, str] | None:
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
    pooling = read(f"{modules[1]['path']}/config.json") or {}
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
    return {"pooler": POOLING_MODES[chosen[0]], "projection": "none"}


# ---- weights


def load_weights(name_or_path: str, config: PretrainedConfig, **hub: Any) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers reports on missing and unexpected weights.

    Raises:
        UserError: there are no safetensors, or they cannot be read into this model.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # `check_weights` judges the report, so it is not printed
    try:
        return AutoModelForFocalCL.from_pretrained(  # type: ignore[no-any-return]
            name_or_path, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **hub
        )
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if "ignore_mismatched_sizes" in str(error):
            raise UserError(
                f"the weights of {name_or_path!r} have other shapes than its config.json says; they are of different "
                "models, so copy both from the same one"
            ) from error
        raise UserError(
            f"the weights of {name_or_path!r} could not be loaded ({first_line(error)}); "
            "a checkpoint needs its weights as safetensors, pickled ones are never opened"
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def check_tokenizer(model: Any, name_or_path: str) -> None:
    """Refuse a tokenizer with ids that the encoder has no embedding for.

    Raises:
        UserError: with both numbers.
    """
    highest, size = max(model.tokenizer.get_vocab().values(), default=0), model.config.vocab_size
    if highest >= size:
        raise UserError(
            f"the tokenizer of {name_or_path!r} has ids up to {highest}, its encoder only {size} embeddings; they are "
            "of different models, so copy both from the same one"
        )


def check_weights(model: Any, info: dict[str, Any], name_or_path: str) -> bool:
    """Refuse a checkpoint whose weights are not those of its config. Returns whether the encoder's pooler is missing.

    Raises:
        UserError: weights are missing, or there are more layers than in the config.
    """

    projection = f"{model.family.projection or 'mlp.dense'}."
    missing = {key for key in info["missing_keys"] if projection not in key}
    if missing:
        raise UserError(
            f"checkpoint {name_or_path!r} lacks {len(missing)} weights of {type(model).__name__}, "
            f"for instance {min(missing)!r}; it is damaged or of another architecture"
        )
    further = [key for key in info["unexpected_keys"] if re.search(r"\blayers?\.\d+\.", key)]
    if further:
        raise UserError(
            f"checkpoint {name_or_path!r} holds {len(further)} weights that its config.json has no layer for, such as "
            f"{min(further)!r}; the config was changed or is of another model"
        )
    return any(projection in key for key in info["missing_keys"])


def require_projection(model: Any, name_or_path: str) -> None:
    """Refuse to embed through a projection that the checkpoint does not carry.

    Raises:
        UserError: the vectors would depend on random weights.
    """
    if model.projection_use == "always" and model.projection_is_random:
        raise UserError(
            f"checkpoint {name_or_path!r} has no projection weights, so --pooler cls would embed through random ones; "
            "use --pooler cls_before_pooler"
        )
