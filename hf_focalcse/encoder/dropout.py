"""Dropout that is fast on CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 1 << 16  # the number of values that a random number of dropout can take


def keep_mask(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """A bool tensor, true with a probability that is 1 - p to within 2^-17, and the inverse of that probability.

    Each 64-bit word of torch's own generator gives four 16-bit numbers, so that seeds, saved states and the replay of
    checkpointing work as usual. Tensor.bernoulli_ takes several times as long on a CPU.
    """
    dropped = min(round(p * LEVELS), LEVELS - 1)
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    keep = words.view(torch.int16)[: shape.numel()] >= dropped - LEVELS // 2
    return keep.view(shape), LEVELS / (LEVELS - dropped)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = keep_mask(x.shape, p)
        ctx.save_for_backward(keep)
        return x.mul(keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].mul(ctx.saved_tensors[0]).mul_(ctx.scale), None


class FastDropout(nn.Dropout):
    """nn.Dropout, which draws by `keep_mask` on CPUs."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        return _Drop.apply(input, self.p)


def use_fast_dropout(module: nn.Module) -> None:
    """Replace every nn.Dropout within ``module`` by `FastDropout`."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p, child.inplace))
