"""LoRA adapters: a folder that holds the change to an encoder's weights, which is added to its base on loading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UserError
from ..runs.folder import ADAPTER_FILE
from .source import Source

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", ADAPTER_FILE
ADAPTER_FOLDER = "adapter"  # in the output folder of a training by LoRA, beside the merged encoder
RECORD_FILE = "focal_cl.json"  # of an adapter trained here: what config.json of a whole encoder says under that key
UNMERGED: dict[
    str, tuple[Any, ...]
] = {  # settings of peft under which W + scale B A is not what it computes -> the values that change nothing
    "use_dora": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
}


@dataclass(frozen=True)
class Adapter:
    """What adapter_config.json says.

    scale: the factor of B A. rank: of A and B.
    """

    base: str
    revision: str | None
    rank: int
    scale: float

    def describe(self) -> str:
        return f"LoRA adapter of rank {self.rank} on {self.base}, merged"


def read_adapter(source: Source) -> Adapter | None:
    """The adapter of a folder or repository without a config.json; None where there is none.

    Raises:
        UserError: it is of a kind that cannot be merged here, or names no base.
    """
    if source.find("config.json") is not None or source.find(CONFIG_FILE) is None:
        return None
    name, config = source.name_or_path, source.read_mapping(CONFIG_FILE)
    base = config.get("base_model_name_or_path")
    if not base:
        raise UserError(f"{name!r} is an adapter, but its {CONFIG_FILE} does not name its base; add it there")
    remedy = (
        f"merge it with peft (AutoPeftModel.from_pretrained({name!r}).merge_and_unload().save_pretrained(FOLDER)) and "
        "give that folder"
    )
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UserError(f"{name!r} is a {kind} adapter of {base!r}; only LoRA can be merged here: {remedy}")
    for key, plain in UNMERGED.items():
        if key in config and config[key] not in plain:
            raise UserError(
                f"{name!r} is an adapter of {base!r} with {key} {config[key]!r}, not merged here: {remedy}"
            )
    rank = int(config["r"])
    root = math.sqrt(rank) if config.get("use_rslora") else rank
    return Adapter(str(base), config.get("revision"), rank, config["lora_alpha"] / root)


@torch.no_grad()
def merge_adapter(model: Any, adapter: Adapter, source: Source) -> None:
    """Add B A, scaled, to the weights of an encoder.

    Raises:
        UserError: there are no safetensors, or a weight of the adapter has no counterpart in the encoder.
    """
    from safetensors.torch import load_file

    file = source.find(WEIGHTS_FILE)
    if file is None:
        raise UserError(
            f"adapter {source.name_or_path!r} has no {WEIGHTS_FILE}; a pickled one is not opened, so save it again "
            "with peft"
        )
    weights = load_file(file)
    parameters = dict(model.encoder.named_parameters())
    for key in sorted(weights):
        stem, part, _ = key.rpartition(".lora_A.")
        if not part:
            if ".lora_B." not in key:
                raise UserError(f"adapter {source.name_or_path!r} holds {key!r}, which is no LoRA weight")
            continue
        path = stem.removeprefix("base_model.model.")
        while f"{path}.weight" not in parameters and "." in path:
            path = path.partition(".")[2]  # of a model with a head: "bert.encoder…"
        if f"{path}.weight" not in parameters:
            raise UserError(
                f"adapter {source.name_or_path!r} changes {stem!r}, which {adapter.base!r} does not have; it is of "
                "another base"
            )
        up = weights[key.replace(".lora_A.", ".lora_B.")].float()
        parameters[f"{path}.weight"] += adapter.scale * up @ weights[key].float()
