"""Packed sentences: one after the other without padding (1, T), with attention within each of them.

Shape letters: R rows, L tokens of the longest row, T tokens of all rows, H heads, d dimensions of a head, D of a
layer, n sentences of a run, l tokens of each.
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
from .dropout import keep_mask

ATTENTION = "focalcse"  # the attn_implementation under which transformers finds `attend`


class Run(NamedTuple):
    """Neighbouring sentences of the same length, the first of which begins at token ``first``."""

    first: int
    sentences: int
    length: int


@dataclass(frozen=True)
class Packed:
    """Where the tokens of rows (R, L) lie in (1, T).

    real: (R, L) bool, true where there is a token. positions: (1, T), the place of each token in its sentence.
    firsts: (R,), the place in (1, T) where each sentence begins.
    """

    real: Tensor
    positions: Tensor
    firsts: Tensor
    runs: list[Run]

    @classmethod
    def of(cls, mask: Tensor) -> Packed:
        """The layout of a mask (R, L) that is padded on the right; a row without tokens keeps its first place."""
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


# ---- attention


class _Attend(torch.autograd.Function):
    """dropout(softmax(scale q k^T)) v within each sentence: q, k, v (T, H, d) -> (T, H, d).

    Backward is written out, because autograd would copy every run into and out of (T, H, d) once more.
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
    """The sentences of a run, out of (T, H, d): (n H, l, d)."""
    tokens = packed[run.first : run.first + run.sentences * run.length]
    return tokens.unflatten(0, (run.sentences, run.length)).transpose(1, 2).flatten(0, 1)


def _put(packed: Tensor, run: Run, heads: Tensor) -> None:
    """The reverse of `_by_heads`: write (n H, l, d) into a run of (T, H, d)."""
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
    """Attention as transformers calls it: q, k, v (R, H, L, d) -> (R, L, H, d).

    With ``runs`` the one row (R = 1) holds packed sentences; without it this is transformers' own sdpa.
    """
    if runs is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    packed = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _Attend.apply(*packed, runs, scale, dropout).unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
