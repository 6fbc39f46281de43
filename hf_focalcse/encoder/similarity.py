"""How alike vectors are: the four similarities of sentence-transformers, between all of them or pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..errors import UserError, suggest


@dataclass(frozen=True)
class Similarity:
    """Larger is more alike. all: (N, D), (M, D) -> (N, M). pairs: (N, D), (N, D) -> (N,)."""

    all: Callable[[Tensor, Tensor], Tensor]
    pairs: Callable[[Tensor, Tensor], Tensor]


SIMILARITIES = {
    "cosine": Similarity(
        lambda a, b: normalize(a, dim=-1) @ normalize(b, dim=-1).T,
        lambda a, b: (normalize(a, dim=-1) * normalize(b, dim=-1)).sum(-1),
    ),
    "dot": Similarity(lambda a, b: a @ b.T, lambda a, b: (a * b).sum(-1)),
    "euclidean": Similarity(lambda a, b: -torch.cdist(a, b, p=2), lambda a, b: -(a - b).norm(dim=-1)),
    "manhattan": Similarity(lambda a, b: -torch.cdist(a, b, p=1), lambda a, b: -(a - b).abs().sum(-1)),
}


def resolve_similarity(name: Any) -> str:
    """The name of a row of `SIMILARITIES`; None is cosine, and the enum of sentence-transformers is read too.

    Raises:
        UserError: there is no such similarity.
    """
    name = getattr(name, "value", name)
    if name is None:
        return "cosine"
    if name not in SIMILARITIES:
        hint = suggest(name, SIMILARITIES) if isinstance(name, str) else ""
        raise UserError(f"there is no similarity {name!r}{hint}; allowed: {', '.join(SIMILARITIES)}")
    return str(name)


def as_tensor(vectors: Any) -> Tensor:
    """A tensor, an array, or a list of either, as a tensor of floats."""
    if isinstance(vectors, (list, tuple)) and vectors and isinstance(vectors[0], (Tensor, np.ndarray)):
        vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
    tensor = torch.as_tensor(vectors)
    return tensor if tensor.is_floating_point() else tensor.float()


def as_rows(vectors: Any) -> Tensor:
    """The same as (N, D); one vector (D,) is one row."""
    tensor = as_tensor(vectors)
    return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor
