"""The training projection of encoders that have no pooler of Linear and tanh."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Projection(nn.Module):
    """Linear and tanh, (…, D) -> (…, D), for encoders without such a pooler."""

    def __init__(self, size: int):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.tanh(self.dense(vectors))
