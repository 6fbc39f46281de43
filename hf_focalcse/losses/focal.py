"""Focal-InfoNCE: hard negatives up, easy ones down, and positives weighted by their own cosine."""

from __future__ import annotations

import copy
import dataclasses
import math

import torch
from torch import Tensor

from ..errors import UserError
from .base import ContrastiveLoss, Pairs, cross_entropy_rows
from .values import positive_number


class FocalInfoNCE(ContrastiveLoss, name="focal"):
    """-log( e^(p^2/tau) / (e^(p^2/tau) + sum_{j!=i} e^(s_ij (s_ij+m)/tau)) ), p = s_ii (Hou & Li 2023, eq. 2).

    Mean over rows, with the gradient through the weights s and s+m, as the public code computes it (the paper writes
    a sum). The derivative with respect to a negative cosine is P_ij (2 s_ij + m) / tau, P_ij its softmax probability;
    eq. 4 of the paper prints another, 2 (s_ij + m) with a further sum over j, which finite differences refute.
    Below s = -m/2 the derivative is negative, so very dissimilar pairs are pulled up to -m/2, and the positive logit
    is even in p: the options remove these two oddities and are off by default.

    Args:
        temperature: tau. The paper prints 0.7 and 0.5 where its code and its ablation use 0.07 and 0.05.
        m: margin added to a negative's weight, >= 0.
        detach_weights: no gradient through the weights (p of p*p, s+m of s*(s+m)).
        clamp_negatives: negative cosines below -m/2 count as -m/2.
        clamp_positives: positive cosines below 0 count as 0.
        symmetric: mean of both directions, view 1 to view 2 and view 2 to view 1; needs as many candidates as anchors.
    """

    formula = "l_i = -log( exp(s_ii²/τ) / ( exp(s_ii²/τ) + Σ_{j≠i} exp(s_ij(s_ij+m)/τ) ) )"
    paper = "https://arxiv.org/abs/2310.06918"
    citation = """@inproceedings{hou2023focal,
  title = {Improving Contrastive Learning of Sentence Embeddings with {Focal-InfoNCE}},
  author = {Hou, Pengyue and Li, Xingyu},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP},
  year = {2023}
}"""
    mask_duplicates = True  # one equal text in the batch costs a loss of 6 at tau 0.05, m 0.3

    def __init__(
        self,
        temperature: float = 0.05,
        m: float = 0.3,
        detach_weights: bool = False,
        clamp_negatives: bool = False,
        clamp_positives: bool = False,
        symmetric: bool = False,
    ):
        super().__init__()
        if not (math.isfinite(m) and m >= 0):
            raise UserError(f"m is {m}; it must be a number of at least 0 (the paper uses 0.3)")
        self.temperature = positive_number("temperature", temperature)
        self.m = self.hard_margin = m
        self.detach_weights = detach_weights
        self.clamp_negatives = clamp_negatives
        self.clamp_positives = clamp_positives
        self.symmetric = symmetric

    def logits(self, cosines: Tensor, is_positive: Tensor) -> Tensor:
        """(B, N) cosines and the mask of the positives -> (B, N) logits."""
        positive = cosines.clamp(min=0) if self.clamp_positives else cosines
        negative = cosines.clamp(min=-self.m / 2) if self.clamp_negatives else cosines
        weight_p, weight_n = positive, negative + self.m
        if self.detach_weights:
            weight_p, weight_n = weight_p.detach(), weight_n.detach()
        return torch.where(is_positive, positive * weight_p, negative * weight_n) / self.temperature

    def bounds(self, candidates: int, dimensions: int = 2, anchors: int = 1) -> dict[str, float]:
        """As for every loss; the symmetric form needs as many anchors as candidates."""
        return super().bounds(candidates, dimensions, candidates if self.symmetric else anchors)

    def loss_if_perfect(self, anchor: Tensor, candidates: Tensor) -> float:
        """As for every loss; it is the same in both directions."""
        one_way = copy.copy(self)
        one_way.symmetric = False
        return super(FocalInfoNCE, one_way).loss_if_perfect(anchor, candidates)

    def rows(self, pairs: Pairs) -> Tensor:
        rows = cross_entropy_rows(pairs, self.logits)
        if not self.symmetric:
            return rows
        anchors, candidates = len(pairs.anchors), len(pairs.candidates)
        if anchors != candidates:
            raise UserError(
                f"symmetric needs as many candidates as anchors, but there are {anchors} anchors and {candidates} "
                "candidates; train without --symmetric, on one process without extra negatives, or with "
                "--negatives local"
            )
        back = torch.argsort(pairs.targets)  # candidate j is the positive of anchor back[j]
        excluded = None if pairs.excluded is None else pairs.excluded.T
        reverse = dataclasses.replace(
            pairs, anchors=pairs.candidates, candidates=pairs.anchors, targets=back, excluded=excluded
        )
        # Candidate targets[i] belongs to anchor i: bring its loss back to row i.
        return (rows + cross_entropy_rows(reverse, self.logits)[pairs.targets]) / 2
