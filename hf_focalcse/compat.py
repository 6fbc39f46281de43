"""Every private name of another library that this package uses, and nothing else.

Each function below wraps one such name under a public one; `OVERRIDDEN` lists the private methods and attributes that
classes of this package replace or read on `self`. tests/test_compat.py has one canary a name, which says what breaks
when the name goes. Nothing heavy is imported until a function is called: the command line imports this file.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn


# ---- torch


def softmax_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """The gradient of a softmax over the last dimension from that of its output: one fused kernel of torch."""
    import torch

    return torch._softmax_backward_data(gradient, output, -1, output.dtype)


def is_rerun_in_backward(layer: nn.Module) -> bool:
    """Whether torch's activation checkpointing (FSDP) has wrapped this layer, so that backward runs it again."""
    return hasattr(layer, "_checkpoint_wrapped_module")


# ---- accelerate


@contextmanager
def plain_forward(model: nn.Module) -> Iterator[None]:
    """Within it, ``model.forward`` is the class's own, without the autocast that accelerate put around it."""
    wrapped = model.__dict__.pop("forward", None) if "_original_forward" in model.__dict__ else None
    try:
        yield
    finally:
        if wrapped is not None:
            model.__dict__["forward"] = wrapped


# ---- transformers: the loss between two log lines


def loss_since_log(trainer: Any) -> tuple[Tensor, int]:
    """The sum of the losses since the last log line, on this process, and the step of that line."""
    return trainer._tr_loss, trainer._globalstep_last_logged


def set_loss_since_log(trainer: Any, total: float, step: int) -> None:
    """Take back what `loss_since_log` gave, when training has begun."""
    trainer._tr_loss += total
    trainer._globalstep_last_logged = step


# ---- transformers: models


def attention_name(config: Any) -> str | None:
    """The attention implementation that a config asks for, such as "sdpa"."""
    name: str | None = config._attn_implementation
    return name


def set_attention(config: Any, name: str) -> None:
    """Let the layers that are built from this config, or were, look up attention ``name``."""
    config._attn_implementation = name


def draw_generic_weights(model: Any, module: nn.Module) -> None:
    """Initialise a module as transformers does by default, whatever the model's family does for its own modules."""
    from transformers import PreTrainedModel

    PreTrainedModel._init_weights(model, module)


def keep_out_of_files(model: Any, names: Iterable[str]) -> None:
    """Let ``save_pretrained`` of this model leave these weights out, and let Trainer not miss them when it loads."""
    model._keys_to_ignore_on_save = [*(type(model)._keys_to_ignore_on_save or []), *names]


def kept_out_of_files(model: Any) -> list[str]:
    """The weights that ``save_pretrained`` of this model leaves out."""
    return list(model._keys_to_ignore_on_save or [])


def auto_class_parts() -> tuple[type, Any]:
    """The base of transformers' Auto classes, and an empty mapping from configs to models for one of them."""
    from transformers.models.auto.auto_factory import _BaseAutoModelClass, _LazyAutoMapping
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return _BaseAutoModelClass, _LazyAutoMapping(CONFIG_MAPPING_NAMES, OrderedDict())


def register(mapping: Any, config_class: type, model_class: type) -> None:
    """Enter a model for a config of transformers' own into such a mapping.

    Its `register` does nothing then, in some versions whatever `exist_ok` is.
    """
    mapping._extra_content[config_class] = model_class


def find_file(name_or_path: str, file: str, **hub: Any) -> str | None:
    """The local path of a file in a folder or a Hub repository; None where there is no such file."""
    from transformers.utils import cached_file

    return cached_file(name_or_path, file, _raise_exceptions_for_missing_entries=False, **hub)


def leave_out_shared_memory_operator() -> None:
    """Let DeepSpeed not compile its shared-memory operator, which takes minutes and is never called here."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@contextmanager
def no_deepspeed_config() -> Iterator[None]:
    """Within it, transformers does not know that DeepSpeed is on, so that a model is loaded whole under ZeRO-3."""
    from transformers.integrations import deepspeed

    reference = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = reference


# ---- transformers: Trainer


def save_unpublished(trainer: Any, folder: str | Path | None = None) -> None:
    """``Trainer.save_model`` without the push to the Hub that it ends with where push_to_hub is on."""
    trainer.save_model(None if folder is None else str(folder), _internal_call=True)


def train_dataloader_by(trainer: Any, dataset: Any, sampler: Callable[[Any], Any]) -> Any:
    """Trainer's training DataLoader, of another data set and another sampler than Trainer would choose."""
    return trainer._get_dataloader(dataset, "Training", trainer._train_batch_size, sampler, is_training=True)


@dataclass(frozen=True)
class Overridden:
    """A private name of another library's class that a class of this package defines anew.

    owner: the class, as module and name. parameters: what the method is called with; None where it is no method.
    breaks: what no longer works here when the name goes.
    """

    owner: str
    parameters: tuple[str, ...] | None
    breaks: str


OVERRIDDEN = {
    "_run_epoch": Overridden(
        "transformers.Trainer",
        (
            *("model", "epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "trial"),
            *("ignore_keys_for_eval", "start_time", "resume_from_checkpoint", "epochs_trained"),
            "steps_trained_in_current_epoch",
        ),
        "running out of memory in a step is no longer refused with a remedy, and a run that is resumed from its last "
        "step trains one step too many",
    ),
    "_get_output_dir": Overridden(
        "transformers.Trainer", ("trial",), "checkpoints are no longer written beside and then moved: one can be torn"
    ),
    "_save_checkpoint": Overridden(
        "transformers.Trainer",
        ("model", "trial"),
        "checkpoints get no checkpoint.json, so that none can be resumed from, and the best one may be deleted",
    ),
    "_load_best_model": Overridden(
        "transformers.Trainer", (), "the best checkpoint's projection is not read from its side file"
    ),
    "_issue_warnings_after_load": Overridden(
        "transformers.Trainer",
        ("load_result",),
        "a checkpoint of another encoder is loaded where its names fit, and the rest stays untrained",
    ),
    "_load_from_checkpoint": Overridden(
        "transformers.Trainer",
        ("resume_from_checkpoint", "model"),
        "a resumed run starts from a projection drawn anew where it lies in a side file",
    ),
    "_init_weights": Overridden(
        "transformers.PreTrainedModel", ("module",), "the projection in a side file keeps uninitialised memory"
    ),
    "_keys_to_ignore_on_save": Overridden(
        "transformers.PreTrainedModel", None, "the projection is written into model.safetensors, not the side file"
    ),
    "_keys_to_ignore_on_load_missing": Overridden(
        "transformers.PreTrainedModel", None, "loading warns of a missing projection, which lies in the side file"
    ),
    "_model_mapping": Overridden("transformers.AutoModel", None, "AutoModelForFocalCL finds no class for a config"),
}


# ---- huggingface_hub


def new_hub_client() -> Any:
    """The client that huggingface_hub makes where nobody gives it another."""
    from huggingface_hub.utils._http import default_client_factory

    return default_client_factory()


# ---- argparse (what HfArgumentParser is made of)


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All arguments of a parser, in the order in which they were added."""
    return parser._actions


def actions_by_flag(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Flag, dashes included -> the argument that it sets."""
    return parser._option_string_actions
