"""Embeddings of one step -> `Pairs`. The only file that knows ranks.

Why the gradient is exact. DDP, FSDP2 and ZeRO compute (1/W) sum_r J_r^T v_r, v_r being the gradient that reached rank
r's own embeddings z_r; wanted is sum_r J_r^T dL/dz_r with L the mean over the anchors of all ranks. Anchors stay
local, candidates are gathered, and the gather's backward sums over ranks, so own rows x W/N give v_r = W dL/dz_r. The
public SimCSE gather (no gradient for remote rows, the whole loss on every rank) gives v_r = dL/dz_r: 1/W of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import UserError
from ..losses.base import EqualPairs, EqualTexts, Pairs, cosine

NEGATIVES = ("global", "local")


def make_pairs(
    embeddings: Tensor,
    text_ids: Tensor | None = None,
    reference: Tensor | None = None,
    negatives: str = "global",
    seed: int | None = None,
    hard_negative_weight: float = 1.0,
) -> Pairs:
    """View 1 (B, D) as anchors, view 2 of all ranks (N, D) as candidates, of embeddings (B, V, D).

    Further views are hard negatives: candidates that are no anchor's positive. B may differ from rank to rank, down
    to 0.
    text_ids: (B,) int64, equal where the texts are equal; such candidates are excluded from an anchor's negatives. Or
    (B, V), where the views of a row are different texts, see `EqualPairs`.
    reference: (B, D'), vectors of a frozen model -> `Pairs.reference`. negatives: of all ranks or of this one.
    seed: -> `Pairs.seed`; give the same on all ranks. hard_negative_weight: of the anchor's own third view in the
    denominator; the hard negatives of others count 1.

    Raises:
        UserError: an unknown value of ``negatives``, or reference vectors for hard negatives, which have none.
    """
    if negatives not in NEGATIVES:
        raise UserError(f"negatives is {negatives!r}; it must be one of {', '.join(NEGATIVES)}")
    rows, views = embeddings.shape[:2]
    if reference is not None and views > 2:
        raise UserError("reference vectors are given for 2 views; hard negatives have none")
    embeddings = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
    sizes = sizes_of_ranks(rows, embeddings.device)
    shared = sizes if negatives == "global" else [rows]
    first = sum(sizes[: rank()]) if negatives == "global" else 0

    everyone = _GatherRows.apply(embeddings[:, 1:], shared) if len(shared) > 1 else embeddings[:, 1:]  # (n, V-1, D)
    candidates = everyone.transpose(0, 1).flatten(0, 1)  # (N, D): all of view 2, then all of view 3, …
    targets = torch.arange(first, first + rows, device=embeddings.device)
    excluded: Any = None
    if text_ids is not None and text_ids.dim() > 1:
        of_all = gather_rows(text_ids, shared)  # (n, V)
        excluded = EqualPairs(text_ids[:, 0], text_ids[:, 1], of_all[:, 1:].T.flatten(), of_all[:, 0])
    elif text_ids is not None:
        everyones = gather_rows(text_ids, shared)  # (n,)
        excluded = EqualTexts(text_ids, everyones, len(candidates) - len(everyones))
    reference = None if reference is None else reference.detach()
    return Pairs(
        anchors=embeddings[:, 0],
        candidates=candidates,
        targets=targets,
        excluded=excluded,
        reference=None if reference is None else cosine(reference, gather_rows(reference, shared)),  # (B, N)
        reference_anchors=reference,
        batch_anchors=None if len(shared) == 1 else _GatherRows.apply(embeddings[:, 0], shared),
        weight=None if len(sizes) == 1 else len(sizes) / max(sum(sizes), 1),
        seed=seed,
        own_negatives=targets + len(everyone) if views == 3 else None,
        own_negative_shift=math.log(hard_negative_weight),
    )


# ---- ranks


def ranks() -> int:
    """W; 1 where no process group was made."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if ranks() > 1 else 0


def sizes_of_ranks(rows: int, device: torch.device) -> list[int]:
    """The number of rows that each rank has."""
    if ranks() == 1:
        return [rows]
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks())]
    dist.all_gather(sizes, torch.tensor([rows], device=device))
    return [int(size) for size in sizes]


def gather_rows(rows: Tensor, sizes: list[int] | None = None) -> Tensor:
    """(n, …) of each rank -> (N, …) in the order of the ranks, without gradient; own rows where sizes has one."""
    sizes = sizes_of_ranks(len(rows), rows.device) if sizes is None else sizes
    if len(sizes) == 1:
        return rows
    own = rows.new_zeros(max(sizes), *rows.shape[1:])
    own[: len(rows)] = rows.detach()
    parts = [torch.empty_like(own) for _ in sizes]
    dist.all_gather(parts, own)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def gather_with_gradient(rows: Tensor) -> Tensor:
    """(n, …) of each rank -> (N, …); backward sums over the ranks."""
    sizes = sizes_of_ranks(len(rows), rows.device)
    found: Tensor = rows if len(sizes) == 1 else _GatherRows.apply(rows, sizes)
    return found


def sum_of_ranks(number: int, device: torch.device) -> int:
    """The sum of a number over all ranks."""
    if ranks() == 1:
        return number
    total = torch.tensor([number], device=device)
    dist.all_reduce(total)
    return int(total.item())


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on some rank."""
    if ranks() == 1:
        return flag
    raised = torch.tensor([int(flag)], device=device)
    dist.all_reduce(raised)
    return bool(raised.item())


class _GatherRows(torch.autograd.Function):
    """`gather_rows` with gradient: backward sums over the ranks and returns the own slice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        ctx.first, ctx.size = sum(sizes[: rank()]), len(rows)
        return gather_rows(rows, sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient[ctx.first : ctx.first + ctx.size], None
