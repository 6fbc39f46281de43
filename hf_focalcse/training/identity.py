"""What makes a run the run that it is: its options, its data, and the weights that it starts from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from torch import nn
from transformers import SchedulerType

from ..data.views import Views
from ..options.tables import identity

CHOOSING = (  # when it is scored and saved, which changes nothing where no score decides anything
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "save_strategy", "save_steps"),
    *("metric_for_best_model", "greater_is_better"),
)
SAMPLED = 1024  # values of a tensor that are looked at
DRAWN = ("pooler.", "mlp.", "lora", "objective.")  # parts that may be drawn anew, of the seed
OF_NO_MATTER = ("name_or_path", "version", "focal_cl", "architectures", "dtype", "dropout", "use_cache")  # in a config


def identity_of_run(trainer: Any) -> dict[str, Any]:
    """What must be equal for a resumed run to equal the uninterrupted one; ask before the first step.

    It has every argument of transformers and, from a command line, every option of this package that is not declared
    harmless. In the place of names and paths of files it has what they led to.
    """
    args, model = trainer.args, trainer.encoder
    frozen = trainer.train_objective.reference
    by_scores = args.load_best_model_at_end or args.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU
    chosen = () if by_scores else CHOOSING
    return {key: value for key, value in (trainer.asked | identity(args.to_dict())).items() if key not in chosen} | {
        "world_size": args.world_size,
        "device": args.device.type,
        "pooler": model.pooler_name,
        "projection": model.projection_use,
        "dropout": model.dropout_rates(),
        "augmentation": [str(one) for one in model.augmentations] or ["dropout"],
        "prompt": model.prompt,
        "prompt_template": None if model.template is None else model.template.name,
        "max_seq_length": trainer.max_seq_length,
        "chunk_size": model.chunk_size,
        "start": weights_fingerprint(model),
        "tokenizer": tokenizer_fingerprint(trainer.processing_class),
        "config": config_of(model),
        "views": views_of(trainer.collate_views),
        "reference": [frozen_facts(one.model) for one in getattr(frozen, "each", [frozen]) if one],
        "reference_weights": getattr(frozen, "weights", None),
        "beside": [weights_fingerprint(one) for one in getattr(trainer.train_objective, "beside", list)()],
        "lora": None if model.lora is None else model.lora.settings(),
        "base_weights": None if model.lora is None else model.lora.digest,
        "dev": dev_fingerprint(trainer.dev),
        **trainer.train_objective.identity(),
        **trainer.given,
    }


def config_of(model: Any) -> dict[str, Any]:
    """What the encoder's configuration says where it differs from its kind's defaults, without what is compared
    elsewhere."""
    said = model.config.to_diff_dict()
    return {name: value for name, value in said.items() if not any(part in name for part in OF_NO_MATTER)}


def views_of(collator: Any) -> Any:
    """How a row becomes its views: their kinds with their settings, or the function that makes them."""
    if isinstance(collator, Views):
        return [repr(kind) for kind in collator.kinds] * (collator.views // len(collator.kinds))
    made = getattr(collator, "function", collator)
    return getattr(made, "__qualname__", type(made).__qualname__)


def frozen_facts(model: Any) -> dict[str, Any]:
    """What decides the vectors of a frozen encoder."""
    return {
        "weights": weights_fingerprint(model),
        "config": config_of(model),
        "pooler": model.pooler_name,
        "projection": model.projection_use,
        "prompt": model.prompt if model.template is None else model.template.text,
        "tokenizer": tokenizer_fingerprint(model.tokenizer),
    }


def given_facts(optimizers: tuple[Any, Any], by_class: tuple[Any, dict[str, Any]] | None) -> dict[str, Any]:
    """The optimizer and the schedule that a script gives in the place of those of the arguments."""
    if by_class is not None:
        return {"given_optimizer": {"class": by_class[0].__qualname__} | by_class[1]}
    optimizer, schedule = optimizers
    made = None if optimizer is None else {"class": type(optimizer).__qualname__} | optimizer.defaults
    return {"given_optimizer": made, "given_schedule": None if schedule is None else type(schedule).__qualname__}


def weights_fingerprint(model: nn.Module) -> str:
    """Of the names and shapes of all tensors that are not drawn anew, and of some values of each."""
    digest = blake2b(digest_size=16)
    for name, weights in sorted(model.named_parameters()):
        if not any(part in name for part in DRAWN):
            values = weights.detach().flatten()
            values = values[:: max(len(values) // SAMPLED, 1)].float().cpu()
            digest.update(f"{name} {tuple(weights.shape)}".encode() + values.numpy().tobytes())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Of the vocabulary and of how text is split into it, whatever it was last used for."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(backend.to_str()) if backend is not None else sorted(tokenizer.get_vocab().items())
    if isinstance(rules, dict):
        rules = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    return blake2b(json.dumps(rules, sort_keys=True).encode(), digest_size=16).hexdigest()


def dev_fingerprint(tasks: Sequence[Any]) -> dict[str, str]:
    """Set -> the sha256 of its pairs, of the sets that say it."""
    return {task.key: task.describe()["sha256"] for task in tasks if hasattr(task, "describe")}
