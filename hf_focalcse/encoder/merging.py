"""The weights of an encoder that is trained by LoRA, with what the adapter has learnt added to them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

ADAPTER = "default"  # as peft names the one that is trained


def layers_of(model: Any) -> dict[str, Any]:
    """Path in the plain encoder -> the layer of peft there."""
    return {name: module for name, module in model.encoder.named_modules() if hasattr(module, "lora_A")}


def merged_state(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of an encoder with an adapter -> that of the plain encoder with W + alpha / rank * B A for W."""
    start = model.base_model_prefix
    merged = {name.replace(".base_layer.", "."): value for name, value in state.items() if ".lora_" not in name}
    for path, layer in layers_of(model).items():
        name = f"{start}.{path}.weight"
        change = layer.get_delta_weight(ADAPTER)
        merged[name] = (merged[name].float() + change.detach().to(merged[name].device)).to(merged[name].dtype)
    return merged
