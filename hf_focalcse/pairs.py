"""Embeddings of one step -> `Pairs`, and what the pairs look like (diagnostics). The only file that knows ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from .losses.base import ContrastiveLoss, Pairs


def make_pairs(embeddings: Tensor, text_ids: Tensor | None = None) -> Pairs:
    """View 1 (B, D) as anchors, view 2 as candidates, of embeddings (B, V, D).

    text_ids: (B,) int64, equal where the texts are equal; such candidates are excluded from an anchor's negatives.
    """
    anchors, candidates = embeddings[:, 0], embeddings[:, 1]
    excluded = None if text_ids is None else text_ids.unsqueeze(1) == text_ids.unsqueeze(0)  # (B, N)
    targets = torch.arange(len(anchors), device=anchors.device)
    return Pairs(anchors, candidates, targets, excluded)


@torch.no_grad()
def describe_pairs(pairs: Pairs, m: float) -> dict[str, float]:
    """Cosines of a step, named with their aggregation; equal for all losses, so that curves compare.

    A negative is called hard above 1 - m (Hou & Li 2023, section 3); m is the focal loss's.
    """
    cosines, negative = pairs.cosines().detach(), pairs.negative_mask()
    positive = cosines.gather(1, pairs.targets.unsqueeze(1)).squeeze(1)  # (B,)
    counts = negative.sum(1)  # (B,)
    total = counts.sum().clamp(min=1)
    hardest = cosines.masked_fill(~negative, -torch.inf).amax(1)[counts > 0]  # (<= B,)
    return {
        "positive_cosine_mean": positive.mean().item(),
        "negative_cosine_mean": ((cosines * negative).sum() / total).item(),
        **({"hardest_negative_cosine_mean": hardest.mean().item()} if len(hardest) else {}),
        "hard_negative_share": (((cosines > 1 - m) & negative).sum() / total).item(),
        "negatives_per_anchor_mean": counts.float().mean().item(),
    }


@torch.no_grad()
def reference_losses(loss: ContrastiveLoss, candidates: int) -> dict[str, float]:
    """What the loss would be for N candidates if every cosine were 0 (nothing learnt: ln N for InfoNCE)
    and if every cosine were 1 (collapsed)."""

    def value(anchors: Tensor, others: Tensor) -> float:
        return loss(Pairs(anchors, others, torch.arange(candidates))).item()

    x, y = torch.eye(2).unsqueeze(1).expand(2, candidates, 2)
    return {"loss_if_untrained": value(x, y), "loss_if_collapsed": value(x, x)}
