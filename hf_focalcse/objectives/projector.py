"""A projector with batch norm between the encoder and the loss, whose statistics are those of all processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .pairs import gather_with_gradient


class BatchNorm(nn.Module):
    """Batch norm over the rows of all processes; what is trained, kept and computed is that of `torch.nn.BatchNorm1d`.

    In training: (x - mean) / sqrt(variance + eps), both over all rows with gradient. Else the running statistics
    count, which move by ``momentum`` towards those of each batch (the variance with n - 1).
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int, affine: bool = True, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.affine, self.eps, self.momentum = affine, eps, momentum
        if affine:
            self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def forward(self, rows: Tensor) -> Tensor:
        """(n, size) -> the same."""
        if self.training:
            rows = rows if rows.dtype == torch.float64 else rows.float()  # as torch does under autocast
            everyone = gather_with_gradient(rows)
            mean, variance = everyone.mean(0), everyone.var(0, correction=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(everyone.var(0).to(self.running_var.dtype), self.momentum)
        else:
            mean, variance = self.running_mean, self.running_var
        found = (rows - mean) / torch.sqrt(variance + self.eps)
        return found * self.weight + self.bias if self.affine else found


class Projector(nn.Sequential):
    """Linear (D, 2D), batch norm, ReLU, linear (2D, D), batch norm without weights; the linear parts have no bias."""

    def __init__(self, size: int):
        super().__init__(
            nn.Linear(size, 2 * size, bias=False),
            BatchNorm(2 * size),
            nn.ReLU(),
            nn.Linear(2 * size, size, bias=False),
            BatchNorm(size, affine=False),
        )
