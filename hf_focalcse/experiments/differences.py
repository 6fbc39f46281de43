"""What can make two runs differ: the settings that a run learnt with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..runs.record import RunRecord

LOSS_TEXTS = ("formula", "networks", "paper", "citation")  # what a record says of a loss besides its settings


def settings_of(record: RunRecord, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """The settings in ``record`` that are ``wanted``, with the loss, its settings, the encoder and its pooling.

    What training found out, such as the pooler that an alias stands for, replaces what was asked for.
    """
    model, loss = record.model, record.loss
    facts = {
        "model_name_or_path": model.get("name_or_path"),
        "pooler": model.get("pooler"),
        "loss": loss["name"],
        **{key: value for key, value in loss.items() if key not in ("name", *LOSS_TEXTS)},
        "model_revision": model.get("revision"),
        "projection": model.get("projection"),
        "world_size": record.world_size,
    }
    asked = {key: value for key, value in record.settings.items() if wanted(key)}
    return {**facts, **asked, **facts}
