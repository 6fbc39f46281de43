"""What follows pooling in a folder of sentence-transformers: Dense, LayerNorm, Normalize, applied and trained here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError

TORCH = "torch.nn.modules."
ACTIVATIONS = {  # as their classes are called in torch.nn -> the same on ``vectors``, for users of plain transformers
    "Identity": "vectors",
    "Tanh": "torch.tanh(vectors)",
    "ReLU": "torch.relu(vectors)",
    "GELU": "torch.nn.functional.gelu(vectors)",
    "SiLU": "torch.nn.functional.silu(vectors)",
    "Sigmoid": "torch.sigmoid(vectors)",
    "Softplus": "torch.nn.functional.softplus(vectors)",
}


class Dense(nn.Module):
    """Linear and an activation: (…, in_features) -> (…, out_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool, activation: str):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation = getattr(nn, activation)()

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.activation(self.linear(vectors))
        return found


class LayerNorm(nn.Module):
    def __init__(self, dimension: int):
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.norm(vectors)
        return found


class Normalize(nn.Module):
    """Vectors of length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1)


MODULES = {"Dense": Dense, "LayerNorm": LayerNorm, "Normalize": Normalize}


def build_tail(size: int, rows: Sequence[Mapping[str, Any]]) -> nn.Sequential:
    """The modules after a pooler of vectors of ``size``; rows: a ``type`` each and the arguments of its class.

    Raises:
        UserError: one of them takes vectors of another size.
    """
    for row in rows:
        wanted = row.get("in_features", row.get("dimension", size))
        if wanted != size:
            raise UserError(
                f"the {row['type']} after pooling takes vectors of {wanted} dimensions, this pooler gives {size}; "
                "leave --pooler out, or give one that concatenates nothing"
            )
        size = row.get("out_features", size)
    return nn.Sequential(*(MODULES[row["type"]](**{k: v for k, v in row.items() if k != "type"}) for row in rows))


def dimensions_after(size: int, rows: Sequence[Mapping[str, Any]]) -> int:
    """The size of the vectors that leave the modules."""
    for row in rows:
        size = row.get("out_features", size)
    return size


def files_of(tail: nn.Sequential, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any, dict[str, Tensor]]]:
    """(class, config.json or None, weights) of each module as sentence-transformers keeps them, in float32."""
    found = []
    for module, row in zip(tail, rows, strict=True):
        config: Any = {k: v for k, v in row.items() if k != "type"} or None
        if row["type"] == "Dense":
            kind = config.pop("activation")
            config["activation_function"] = f"{TORCH}{'linear' if kind == 'Identity' else 'activation'}.{kind}"
        weights = {k: v.detach().to("cpu", torch.float32).contiguous() for k, v in module.state_dict().items()}
        found.append((row["type"], config, weights))
    return found


def code_of(rows: Sequence[Mapping[str, Any]], folders: Sequence[str], name: str) -> list[str]:
    """Lines of Python over ``vectors`` that do what the modules do; folders: those of the modules in an export.

    They need torch, load_file of safetensors.torch, and cached_file of transformers.utils.
    """
    lines = []
    for row, folder in zip(rows, folders, strict=True):
        if row["type"] == "Normalize":
            lines.append("vectors = torch.nn.functional.normalize(vectors)")
            continue
        lines.append(f'module = load_file(cached_file("{name}", "{folder}/model.safetensors"))')
        if row["type"] == "LayerNorm":
            size = '(vectors.shape[1],), module["norm.weight"], module["norm.bias"]'
            lines.append(f"vectors = torch.nn.functional.layer_norm(vectors, {size})")
            continue
        bias = ' + module["linear.bias"]' if row["bias"] else ""
        lines.append(f'vectors = vectors @ module["linear.weight"].T{bias}')
        if row["activation"] != "Identity":
            lines.append(f"vectors = {ACTIVATIONS[row['activation']]}")
    return lines
