"""RankCSE: two views agree on how similar the other sentences are, and rank them as frozen teachers do."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from .base import ContrastiveLoss, Pairs, cosine, cross_entropy_rows, required_reference
from .build import contrastive_term
from .values import not_negative, one_of, positive_number

RANKINGS = ("listmle", "listnet")
PAPER = "https://arxiv.org/abs/2305.16726"
CITATION = """@inproceedings{liu2023rankcse,
  title = {{RankCSE}: Unsupervised Sentence Representations Learning via Learning to Rank},
  author = {Liu, Jiduan and Liu, Jiahao and Wang, Qifan and Wang, Jingang and Cai, Xunliang and Zhao, Dongyan and
            Wang, Ran Lucien and Yan, Rui},
  booktitle = {Annual Meeting of the Association for Computational Linguistics (ACL)},
  year = {2023}
}"""
EPSILON = 1e-7  # of the released code


class _Distilling(ContrastiveLoss):
    """What both forms share: a contrastive term and two terms that are logged besides."""

    references = 2
    needs_reference = True

    def cells(self, anchors: int, candidates: int, device: torch.device) -> int:
        """All of them: lists are ranked as a whole."""
        return anchors * candidates

    def terms(self, pairs: Pairs) -> dict[str, Tensor]:
        """Name -> rows (B,) of each term, not weighted yet."""
        raise NotImplementedError

    @torch.no_grad()
    def diagnostics(self, pairs: Pairs) -> dict[str, float]:
        """As for every loss, and the mean of each term before it is weighted, of this process's anchors."""
        terms = {f"{name}_term": rows.mean().item() for name, rows in self.terms(pairs).items()}
        return super().diagnostics(pairs) | terms


class RankCSE(_Distilling, name="rankcse"):
    """L_info + beta JS(p, q) + gamma L_rank, each a mean over the anchors (Liu et al. 2023).

    L_info is InfoNCE, or focal. p_i is the softmax of cos(z1_i, z2_j)/tau over the batch and q_i that of
    cos(z2_i, z1_j)/tau: their Jensen-Shannon divergence, with natural logarithms, is at most ln 2. L_rank compares the
    cosines of the encoder with those of one or two frozen teachers, T. ListNet is the cross entropy of
    softmax(T/tau_t) and softmax(cos/tau_r) over the other sentences. ListMLE is -log of the probability that drawing
    sentences without replacement by e^(cos/tau_r) gives the order of falling T, the own positive included; sentences
    that the teachers find equally similar count in the order of the batch. It is a sum over the positions of the list,
    which grows as ln N!, so that its weight would grow with the batch: it is divided by the length of the list unless
    ``per_position`` is off. Ranking takes the cosines themselves under focal too, whose logits are not monotone.
    Equal texts that are masked leave all three terms.

    Args:
        temperature: tau, of the contrastive term and of the consistency.
        base: whose contrastive term: infonce as in the paper, or focal.
        m: margin added to a negative's weight, >= 0; with base focal only, where it is focal's unless given.
        ranking: listmle or listnet.
        rank_temperature: tau_r of the encoder's cosines in the ranking; tau unless given.
        teacher_temperature: tau_t of the teachers' cosines in listnet; half of tau_r unless given.
        consistency_weight: beta.
        ranking_weight: gamma.
        per_position: divide the sum of listmle by the length of the list.
    """

    formula = (
        "l_i = -log( exp(s_ii/τ) / Σ_j exp(s_ij/τ) ) + β JS( softmax_j(s_ij/τ), softmax_j(s_ji/τ) ) + γ rank_i, "
        "rank_i the ListMLE or ListNet loss of s_i against the frozen teachers' cosines"
    )
    paper = PAPER
    citation = CITATION

    def __init__(
        self,
        temperature: float = 0.05,
        base: str = "infonce",
        m: float | None = None,
        ranking: str = "listmle",
        rank_temperature: float | None = None,
        teacher_temperature: float | None = None,
        consistency_weight: float = 1.0,
        ranking_weight: float = 1.0,
        per_position: bool = True,
    ):
        super().__init__()
        contrastive: Any = contrastive_term(base, temperature, m)
        one_of("ranking", ranking, RANKINGS)
        if teacher_temperature is not None and ranking != "listnet":
            raise UserError(
                f"teacher_temperature is {teacher_temperature}, but {ranking} uses the order of the teachers' cosines "
                "alone; leave it out or use ranking listnet"
            )
        self.temperature = positive_number("temperature", temperature)
        self.base, self.m, self.ranking, self.per_position = base, m, ranking, per_position
        self.rank_temperature = _positive_or_none("rank_temperature", rank_temperature)
        self.teacher_temperature = _positive_or_none("teacher_temperature", teacher_temperature)
        self.consistency_weight = not_negative("consistency_weight", consistency_weight)
        self.ranking_weight = not_negative("ranking_weight", ranking_weight)
        self.logits, self.hard_margin = contrastive.logits, contrastive.hard_margin

    def rows(self, pairs: Pairs) -> Tensor:
        terms = self.terms(pairs)
        ranked = self.consistency_weight * terms["consistency"] + self.ranking_weight * terms[self.ranking]
        return terms["contrastive"] + ranked

    def terms(self, pairs: Pairs) -> dict[str, Tensor]:
        cosines, hidden = pairs.cosines(), pairs.hidden_mask()
        teacher = required_reference(pairs, self.name)
        tau = self.rank_temperature or self.temperature
        if self.ranking == "listmle":
            ranked = list_mle_rows(cosines / tau, teacher, hidden)
            length = len(pairs.candidates) if hidden is None else (~hidden).sum(1)
            ranked = ranked / length if self.per_position else ranked
        else:
            left_out = pairs.positive_mask() if hidden is None else pairs.positive_mask() | hidden
            ranked = list_net_rows(cosines / tau, teacher / (self.teacher_temperature or tau / 2), left_out)
        return {
            "contrastive": cross_entropy_rows(pairs, self.logits),
            "consistency": divergence_rows(*both_ways(pairs, cosines, self.temperature)),
            self.ranking: ranked,
        }


class ReleasedRankCSE(_Distilling, name="rankcse_released"):
    """What the community code of RankCSE computes: it departs from the paper in four points.

    Its consistency is -(H(p) + H(q))/2 - 1e-7, of p and q of at least 1e-7, since the logarithm of their mean is
    clamped from below and so is 1e-7 everywhere: it never compares the two and rewards flat rows. It has no weight.
    ListNet and ListMLE take cos/tau of the encoder and T/tau_r of the teachers, without the half that the paper gives
    them. ListMLE is a sum over positions, adds 1e-7 inside the logarithm, leaves out a sentence with T/tau_r = -1,
    and breaks ties at random, here from the seed of the step. All candidates count, equal texts too.

    Args:
        temperature: tau, of all terms of the encoder.
        ranking: listmle or listnet.
        rank_temperature: tau_r, of the teachers' cosines in listnet; tau unless given.
        ranking_weight: gamma.
    """

    formula = "l_i = -log( exp(s_ii/τ) / Σ_j exp(s_ij/τ) ) - ( H(p_i) + H(q_i) ) / 2 + γ rank_i"
    paper = PAPER
    citation = CITATION

    def __init__(
        self,
        temperature: float = 0.05,
        ranking: str = "listmle",
        rank_temperature: float | None = None,
        ranking_weight: float = 1.0,
    ):
        super().__init__()
        one_of("ranking", ranking, RANKINGS)
        self.temperature = positive_number("temperature", temperature)
        self.ranking = ranking
        self.rank_temperature = _positive_or_none("rank_temperature", rank_temperature)
        self.ranking_weight = not_negative("ranking_weight", ranking_weight)

    def logits(self, cosines: Tensor, is_positive: Tensor) -> Tensor:
        """(B, N) cosines -> (B, N) logits."""
        return cosines / self.temperature

    def bounds(self, candidates: int, dimensions: int = 2, anchors: int = 1) -> dict[str, float]:
        """As for every loss; the entropy of one anchor is that over all anchors."""
        return super().bounds(candidates, dimensions, candidates)

    def rows(self, pairs: Pairs) -> Tensor:
        terms = self.terms(pairs)
        return terms["contrastive"] + terms["consistency"] + self.ranking_weight * terms[self.ranking]

    def terms(self, pairs: Pairs) -> dict[str, Tensor]:
        cosines = pairs.cosines()
        student = cosines / self.temperature
        teacher = required_reference(pairs, self.name) / (self.rank_temperature or self.temperature)
        if self.ranking == "listmle":
            ranked = self._list_mle(student, teacher, pairs.seed)
        else:
            ranked = list_net_rows(student, teacher, pairs.positive_mask())
        p, q = (log.exp().clamp(min=EPSILON) for log in both_ways(pairs, cosines, self.temperature)[:2])
        return {
            "contrastive": cross_entropy_rows(pairs, self.logits),
            "consistency": (p * (p.log() - EPSILON) + q * (q.log() - EPSILON)).sum(1) / 2,
            self.ranking: ranked,
        }

    @staticmethod
    def _list_mle(student: Tensor, teacher: Tensor, seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(student.shape[1], generator=generator).to(student.device)
        falling = teacher[:, shuffled].argsort(dim=1, descending=True, stable=True)
        order = shuffled[falling]
        dropped = teacher.gather(1, order) == -1
        ranked = student.gather(1, order).masked_fill(dropped, -torch.inf)
        ranked = ranked - ranked.amax(1, keepdim=True)
        tails = ranked.exp().flip(1).cumsum(1).flip(1)
        return ((tails + EPSILON).log() - ranked).masked_fill(dropped, 0.0).sum(1)


# ---- terms


def both_ways(pairs: Pairs, cosines: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """log p and log q, (B, n) each, over the n pairs of the batch, and the mask of those that are hidden from an
    anchor, which count nothing in either; None where none is.

    Candidates that are no anchor's positive have no way back and are left out.
    """
    positives = pairs.candidates[pairs.targets]  # (B, D)
    if pairs.batch_anchors is None:
        others, columns = pairs.anchors, pairs.targets
    else:
        others, columns = pairs.batch_anchors, torch.arange(len(pairs.batch_anchors), device=cosines.device)
    there, back = cosines[:, columns] / temperature, cosine(positives, others) / temperature  # (B, n)
    hidden = pairs.hidden_mask()
    hidden = None if hidden is None else hidden[:, columns]
    log_p, log_q = (sink(logits, hidden).log_softmax(1) for logits in (there, back))
    return log_p, log_q, hidden


def divergence_rows(log_p: Tensor, log_q: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Jensen-Shannon divergence of each row, natural logarithm: (B,)."""
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    cells = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return (cells if hidden is None else cells.masked_fill(hidden, 0.0)).sum(1) / 2


def list_net_rows(student: Tensor, teacher: Tensor, left_out: Tensor) -> Tensor:
    """Cross entropy of softmax(teacher) and softmax(student) over what is not left out, logits (B, N) -> (B,)."""
    wanted = sink(teacher, left_out).softmax(1).masked_fill(left_out, 0.0)
    return -(wanted * sink(student, left_out).log_softmax(1)).masked_fill(left_out, 0.0).sum(1)


def list_mle_rows(student: Tensor, teacher: Tensor, hidden: Tensor | None = None) -> Tensor:
    """sum_k [ lse_{l >= k} student_l - student_k ] in the order of falling teacher, (B, N) -> (B,)."""
    order = sink(teacher, hidden).argsort(dim=1, descending=True, stable=True)  # what is hidden comes last
    ranked = sink(student, hidden).gather(1, order)
    tails = ranked.flip(1).logcumsumexp(1).flip(1)
    rows = tails - ranked
    return (rows if hidden is None else rows.masked_fill(hidden.gather(1, order), 0.0)).sum(1)


def sink(logits: Tensor, hidden: Tensor | None) -> Tensor:
    """Logits that are so low where they are hidden that they add nothing: finite, since -inf - -inf is not."""
    return logits if hidden is None else logits.masked_fill(hidden, torch.finfo(logits.dtype).min / 4)


def _positive_or_none(name: str, value: float | None) -> float | None:
    return None if value is None else positive_number(name, value)
