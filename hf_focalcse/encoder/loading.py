"""A folder or a Hub id -> an encoder with its tokenizer, which pools as the checkpoint says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging

from ..errors import UserError, first_line
from .auto import MODELS, AutoModelForFocalCL
from .poolers import POOLERS
from .recorded import read_pooling
from .tokenizer import load_tokenizer


def load_model(
    name_or_path: str,
    pooler: str | None = None,
    projection: str | None = None,
    dropout: float | None = None,
    revision: str | None = None,
    default_pooler: bool = False,
) -> Any:
    """A ``…ForFocalCL`` encoder with its tokenizer, from a folder or a Hub id.

    Weights are read from safetensors only. They are float32 whatever they were saved as, since training starts here.

    pooler, projection: default to what the checkpoint records (``focal_cl`` in its config, else the files of
    sentence-transformers), which stays known as ``model.published``. dropout: sets every dropout rate of the encoder,
    under the names that its family uses. default_pooler: where nothing is recorded, take the pooler of the encoder's
    family, [CLS] with the projection, as training does.

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
    recorded = read_pooling(config, name_or_path, **hub)
    if pooler is None and recorded is not None:
        pooler, projection = recorded.pooler, projection or recorded.projection
    elif pooler is None and default_pooler:
        pooler = MODELS[type(config)].family.pooler
    elif pooler is None:
        raise UserError(f"nothing in {name_or_path!r} says how it pools; choose with --pooler: {', '.join(POOLERS)}")
    config.focal_cl = (getattr(config, "focal_cl", None) or {}) | {"pooler": pooler, "projection": projection}
    model, info = load_weights(name_or_path, config, **hub)
    model.tokenizer = load_tokenizer(name_or_path, **hub)
    check_tokenizer(model, name_or_path)
    projection_missing = check_weights(model, info, name_or_path)
    if not model.encoder_has_pooler:
        projection_missing = not model.load_head(name_or_path, **hub)
    model.projection_is_random = projection_missing
    model.published = recorded
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
