"""The weights of an encoder, checked against what its config says of it."""

from __future__ import annotations

import re
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PretrainedConfig
from transformers.utils import logging

from ..errors import UserError, first_line
from .auto import AutoModelForFocalCL
from .source import INDEX, PICKLE, Source, refuse_pickle, refuse_pointer

OTHERS = ("tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "openvino/openvino_model.xml")  # weights as well
LAYERS = re.compile(r"\b(layers?|block|h)\.\d+\.")  # within the key of a weight


def load_weights(source: Source, config: PretrainedConfig, path: str = "") -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers reports on missing and unexpected weights; path: the folder of the encoder.

    Raises:
        UserError: there are no safetensors, or they cannot be read into this model.
    """
    name, verbosity = source.name_or_path, logging.get_verbosity()
    hub = {**source.hub, "trust_remote_code": False} | ({"subfolder": path} if path else {})
    logging.set_verbosity_error()  # `check_weights` judges the report, so it is not printed
    try:
        return AutoModelForFocalCL.from_pretrained(  # type: ignore[no-any-return]
            name, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **hub
        )
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if "ignore_mismatched_sizes" in str(error):
            raise UserError(
                f"the weights of {name!r} have other shapes than its config.json says; they are of different "
                "models, so copy both from the same one"
            ) from error
        start = f"{path}/" if path else ""
        found = [source.find(f"{start}model.safetensors{index}") for index in ("", ".index.json")]
        pickled = [file for file in (PICKLE, PICKLE + INDEX) if source.find(start + file) is not None]
        if pickled and not any(found):
            raise refuse_pickle(name, start + pickled[0]) from error
        if found[0] is not None and (pointer := refuse_pointer(found[0])):
            raise pointer from error
        if not any(found):
            others = [file for file in OTHERS if source.find(start + file) is not None]
            held = f", only {', '.join(others)}, from which no training starts" if others else ""
            raise UserError(
                f"{name!r} has no weights as safetensors{held}; take model.safetensors from the repository that it "
                "came from, or save the model there again with transformers"
            ) from error
        raise UserError(
            f"the weights of {name!r} could not be loaded ({first_line(error)}); "
            "a checkpoint needs its weights as safetensors, pickled ones are never opened"
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def check_weights(model: Any, info: dict[str, Any], name_or_path: str) -> bool:
    """Refuse a checkpoint whose weights are not those of its config. Returns whether the encoder's pooler is missing.

    Raises:
        UserError: weights are missing, or there are more layers than in the config.
    """
    projection = f"{model.family.projection or 'mlp.dense'}."
    missing = {key for key in info["missing_keys"] if projection not in key and not key.startswith("tail.")}
    further = [key for key in info["unexpected_keys"] if LAYERS.search(key)]
    if getattr(model.config, "auto_map", None) and (missing or further):
        raise UserError(
            f"{name_or_path!r} was made for code of its own (auto_map in its config.json), which is never run, and "
            f"its weights do not fit {type(model.encoder).__name__} of transformers ({min(missing or further)!r}); "
            "start from another encoder, or from a version of this one that transformers has built in"
        )
    if missing:
        raise UserError(
            f"checkpoint {name_or_path!r} lacks {len(missing)} weights of {type(model).__name__}, "
            f"for instance {min(missing)!r}; it is damaged or of another architecture"
        )
    if further:
        raise UserError(
            f"checkpoint {name_or_path!r} holds {len(further)} weights that its config.json has no layer for, such as "
            f"{min(further)!r}; the config was changed or is of another model"
        )
    return any(projection in key for key in info["missing_keys"])


def check_finite(model: Any, name_or_path: str) -> None:
    """Refuse weights of which no vector can be computed.

    Raises:
        UserError: with the first weight that holds NaN or infinity.
    """
    for key, value in model.state_dict().items():
        # A sum costs less than a look at each number, and is finite for all weights but those of huge numbers.
        if value.is_floating_point() and not value.sum().isfinite() and not value.isfinite().all():
            raise UserError(
                f"the weight {key!r} of {name_or_path!r} holds NaN or infinity: the file is damaged, or its training "
                "diverged; copy it again from its source, or take an earlier checkpoint"
            )


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
