"""What makes a run the run that it is: its options, its data, and the weights that it starts from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from torch import nn

from ..options.tables import identity

CHOOSING = (  # when it is scored and saved, which changes nothing where the last checkpoint is the result
    *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "save_strategy", "save_steps"),
    *("metric_for_best_model", "greater_is_better"),
)
SAMPLED = 1024  # values of a tensor that are looked at
DRAWN = ("pooler.", "mlp.", "lora", "objective.", "tail.")  # parts that may be drawn anew, of the seed


def identity_of_run(trainer: Any) -> dict[str, Any]:
    """What must be equal for a resumed run to equal the uninterrupted one; ask before the first step.

    It has every argument of transformers and, from a command line, every option of this package that is not declared
    harmless. In the place of names and paths of files it has what they led to.
    """
    args, model = trainer.args, trainer.encoder
    frozen = trainer.train_objective.reference
    chosen = () if args.load_best_model_at_end else CHOOSING
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
        "reference": [weights_fingerprint(one.model) for one in getattr(frozen, "each", [frozen]) if one],
        "lora": None if model.lora is None else model.lora.settings(),
        "base_weights": None if model.lora is None else model.lora.digest,
        "dev": dev_fingerprint(trainer.dev),
        **trainer.train_objective.identity(),
    }


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
