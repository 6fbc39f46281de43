"""Which programs do not read an export as it was trained, in sentences for its card."""

from __future__ import annotations

from typing import Any

from ..encoder.poolers import JOINED, pooler_of
from .sentence_files import modes

SERVER = "text-embeddings-inference"
SERVED = (["cls_token"], ["mean_tokens"], ["lasttoken"])  # what that server can pool


def who_differs(model: Any) -> list[str]:
    """A sentence for each program, or older version of one, that fails on the folder or gives other vectors."""
    family, config, said = model.family, model.config, []
    if family.since:
        said.append(
            f"transformers before {family.since}, and sentence-transformers on top of it, do not know encoders of the "
            f"type {config.model_type} and stop with an error."
        )
    if family.arguments and getattr(config, "is_causal", None) is False:
        said.append(
            "Its tokens read those behind them (`is_causal` in config.json), which transformers before 5.2 passes "
            "over: it gives other vectors."
        )
    row = pooler_of(model.pooler_name)
    if "pooling_mode" in modes(row.sentence_transformers):
        said.append(
            "The order in which its vectors are joined is read by sentence-transformers from 5.4 on; older versions "
            f"stop with an error, and so does {SERVER}."
        )
    elif row.averaged or list(row.sentence_transformers) not in SERVED or JOINED in model.pooler_name:
        said.append(f"{SERVER} cannot pool as {model.pooler_name} does: it gives other vectors.")
    if not model.include_prompt:
        said.append(
            "The tokens of a prompt are left out of pooling as sentence-transformers 5 and later count them; older "
            f"versions count them otherwise, and {SERVER} pools them."
        )
    rows = config.focal_cl.get("modules", [])
    if any(of["type"] == "LayerNorm" for of in rows):
        said.append(f"{SERVER} passes over the layers after pooling: it gives other vectors.")
    if model.prompt:
        said.append(
            f"{SERVER} puts no prompt before a text unless it is started with `--default-prompt-name "
            f"{model.default_prompt_name}`."
        )
    if model.truncate_dim is not None:
        said.append(
            f"sentence-transformers before 4 and {SERVER} give vectors of full size; keep the first "
            f"{model.truncate_dim} numbers of each."
        )
    return said
