"""Sentences one after the other, unpadded, (1, T): attention within each of them; dropout that is fast on CPUs.

Shape letters: R rows, L tokens of the longest, T tokens of all rows, H heads, d dimensions of a head, D of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..compat import softmax_backward

ATTENTION = "focalcse"  # as attn_implementation: `attend`
LEVELS = 1 << 16  # values of the random numbers that dropout compares with its rate


class Run(NamedTuple):
    """Neighbouring sentences of one length, beginning at token ``first``."""

    first: int
    sentences: int
    length: int


@dataclass(frozen=True)
class Packed:
    """Where the tokens of rows (R, L) lie in (1, T).

    real: (R, L) bool, the tokens. positions: (1, T), of each in its sentence. firsts: (R,), where sentences begin.
    """

    real: Tensor
    positions: Tensor
    firsts: Tensor
    runs: list[Run]

    @classmethod
    def of(cls, mask: Tensor) -> Packed:
        """The layout of a mask (R, L) padded on the right; a row without tokens keeps its first one."""
        lengths = mask.sum(1).clamp(min=1)
        places = torch.arange(mask.shape[1], device=mask.device)
        real = places < lengths.unsqueeze(1)
        runs, first = [], 0
        for length, group in groupby(lengths.tolist()):
            runs.append(Run(first, sum(1 for _ in group), length))
            first += runs[-1].sentences * length
        return cls(real, places.expand_as(mask)[real].unsqueeze(0), lengths.cumsum(0) - lengths, runs)

    def pack(self, rows: Tensor) -> Tensor:
        """(R, L, …) -> (1, T, …)."""
        return rows[self.real].unsqueeze(0)

    def unpack(self, packed: Tensor) -> Tensor:
        """(1, T, D) -> (R, L, D), zero where there is no token."""
        rows = packed.new_zeros(self.real.numel(), packed.shape[-1])
        return rows.index_copy(0, self.real.flatten().nonzero().squeeze(1), packed[0]).unflatten(0, self.real.shape)


# ---- dropout


def keep_mask(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """Bool, true with probability 1 - p to within 2^-17, and one over that very probability.

    Four 16-bit numbers from each 64-bit word of torch's own generator, so that seeds, saved states and the replay of
    checkpointing mean what they always do; Tensor.bernoulli_ takes several times as long on a CPU.
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
    """nn.Dropout, on CPUs by `keep_mask`."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        return _Drop.apply(input, self.p)


def use_fast_dropout(module: nn.Module) -> None:
    """Put `FastDropout` in the place of every nn.Dropout within ``module``."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p, child.inplace))


# ---- attention


class _Attend(torch.autograd.Function):
    """softmax(scale q k^T), dropped out, times v, within each sentence: (T, H, d) three times -> (T, H, d).

    Backward is the usual one, written out since autograd's would copy every run into and out of (T, H, d) again.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, runs: list[Run], scale: float, p: float
    ) -> Tensor:
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        ctx.runs, ctx.scale, ctx.factors = runs, scale, []
        saved = []
        for run in runs:
            q, k, v = (_by_heads(part, run) for part in (query, key, value))  # (n H, l, d)
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(scale)
            weights = scores.to(torch.promote_types(q.dtype, torch.float32)).softmax(-1).to(q.dtype)  # (n H, l, l)
            keep, factor = keep_mask(weights.shape, p) if p else (None, 1.0)
            dropped = weights if keep is None else weights.mul(keep).mul_(factor)
            _put(output, run, torch.bmm(dropped, v))
            ctx.factors.append(factor)
            saved += [q, k, v, weights, keep]
        ctx.save_for_backward(*saved)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        results = [torch.empty_like(gradients[0], memory_format=torch.contiguous_format) for _ in range(3)]
        saved = iter(ctx.saved_tensors)
        for run, factor in zip(ctx.runs, ctx.factors, strict=True):
            q, k, v, weights, keep = (next(saved) for _ in range(5))
            gradient = _by_heads(gradients[0], run)
            dropped = weights if keep is None else weights.mul(keep).mul_(factor)
            of_value = torch.bmm(dropped.transpose(1, 2), gradient)
            of_weights = torch.bmm(gradient, v.transpose(1, 2))
            if keep is not None:
                of_weights.mul_(keep).mul_(factor)
            of_scores = softmax_backward(of_weights, weights).mul_(ctx.scale)
            found = torch.bmm(of_scores, k), torch.bmm(of_scores.transpose(1, 2), q), of_value
            for result, part in zip(results, found, strict=True):
                _put(result, run, part)
        return *results, None, None, None


def _by_heads(packed: Tensor, run: Run) -> Tensor:
    """The sentences of a run of (T, H, d): (n H, l, d)."""
    tokens = packed[run.first : run.first + run.sentences * run.length]
    return tokens.unflatten(0, (run.sentences, run.length)).transpose(1, 2).flatten(0, 1)


def _put(packed: Tensor, run: Run, heads: Tensor) -> None:
    """The reverse of `_by_heads`."""
    tokens = packed[run.first : run.first + run.sentences * run.length].unflatten(0, (run.sentences, run.length))
    tokens.copy_(heads.unflatten(0, (run.sentences, -1)).transpose(1, 2))


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    runs: list[Run] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers: (R, H, L, d) three times -> (R, L, H, d); packed, R = 1, where ``runs`` are given."""
    if runs is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    packed = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _Attend.apply(*packed, runs, scale, dropout).unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
