"""An export of the adapter alone: the folder that peft, transformers and sentence-transformers add to its base."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..encoder.adapters import ADAPTER_FOLDER, CONFIG_FILE, RECORD_FILE, WEIGHTS_FILE
from ..encoder.lora import public_base
from ..encoder.poolers import pooler_of
from ..errors import UserError
from ..runs.atomic import write_json
from ..runs.record import RUN_FILE, RunRecord, file_sha256, without_paths
from .portable import make_tokenizer_portable


def find_adapter(checkpoint: Path) -> Path:
    """The folder of the adapter of a training by LoRA, or of one of its checkpoints.

    Raises:
        UserError: there is none, or it is not that of the encoder beside it.
    """
    folder = checkpoint if (checkpoint / CONFIG_FILE).is_file() else checkpoint / ADAPTER_FOLDER
    if not all((folder / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE, RECORD_FILE)):
        raise UserError(
            f"--adapter_only: {checkpoint} holds no adapter, since it was not trained with --lora; leave "
            "--adapter_only out: the export then holds the whole encoder"
        )
    lora = RunRecord.load(checkpoint).model.get("lora") if (checkpoint / RUN_FILE).is_file() else None
    if lora and lora.get("adapter_sha256") not in (None, file_sha256(folder / WEIGHTS_FILE)):
        raise UserError(f"{folder} is not the adapter that {checkpoint / RUN_FILE} names; train again")
    return folder


def check_adapter(model: Any, adapter: Path, sentence_transformers: bool, onnx: bool) -> dict[str, Any]:
    """adapter_config.json as it may be published: with the base as others can have it.

    Raises:
        UserError: the base is a folder, the adapter is not all that was learnt, or a format cannot hold it.
    """
    if find_spec("peft") is None:
        raise UserError("--adapter_only needs peft, which is not installed: pip install 'hf_focalcse[lora]'")
    if onnx:
        raise UserError(
            "--adapter_only and --onnx are both given, but ONNX holds a whole encoder; leave one of them out"
        )
    if model.projection_use == "always":
        raise UserError(
            "--adapter_only: this encoder embeds through a projection that was trained whole, which an adapter does "
            "not hold; leave --adapter_only out, or train with --mlp_only_train"
        )
    if sentence_transformers and pooler_of(model.pooler_name).averaged:
        raise UserError(
            f"--adapter_only: pooler {model.pooler_name} averages layers, which sentence-transformers reads of the "
            "encoder's config.json, and an adapter has none; leave --adapter_only out, or add "
            "--no_sentence_transformers"
        )
    config = dict(json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8")))
    base, revision = public_base(config["base_model_name_or_path"], config.get("revision"))
    return config | {"base_model_name_or_path": base, "revision": revision}


def write_adapter_export(model: Any, adapter: Path, config: dict[str, Any], stage: Path) -> int:
    """Write the adapter and its tokenizer; the number of tokens that the encoder reads."""
    limit = int(model.reach())
    tokenizer = model.tokenizer
    before, tokenizer.model_max_length = tokenizer.model_max_length, limit
    tokenizer.save_pretrained(stage)
    tokenizer.model_max_length = before
    make_tokenizer_portable(stage)
    write_json(stage / CONFIG_FILE, config)
    shutil.copyfile(adapter / WEIGHTS_FILE, stage / WEIGHTS_FILE)
    record = json.loads((adapter / RECORD_FILE).read_text(encoding="utf-8"))
    write_json(stage / RECORD_FILE, without_paths(record))
    return limit


@contextmanager
def on_local_base(adapter: Path, stage: Path) -> Iterator[None]:
    """Within it, the adapter in ``stage`` names the base as it lies on this machine, so that it can be checked."""
    published = (stage / CONFIG_FILE).read_text(encoding="utf-8")
    shutil.copyfile(adapter / CONFIG_FILE, stage / CONFIG_FILE)
    try:
        yield
    finally:
        (stage / CONFIG_FILE).write_text(published, encoding="utf-8")
