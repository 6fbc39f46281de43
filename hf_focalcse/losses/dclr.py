"""DCLR: noise vectors as further negatives, moved to where the space is crowded; false negatives are removed."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .base import (
    ContrastiveLoss,
    Pairs,
    cosine,
    cross_entropy_rows,
    normalize,
    required_reference,
)
from .build import contrastive_term
from .values import not_negative, one_of, positive_number

WEIGHTINGS = ("reference", "self", "distillation", "none")
PAPER = "https://arxiv.org/abs/2205.00656"
CITATION = """@inproceedings{zhou2022dclr,
  title = {Debiased Contrastive Learning of Unsupervised Sentence Representations},
  author = {Zhou, Kun and Zhang, Beichen and Zhao, Wayne Xin and Wen, Ji-Rong},
  booktitle = {Annual Meeting of the Association for Computational Linguistics (ACL)},
  year = {2022}
}"""


class _WithNoise(ContrastiveLoss):
    """What losses share that draw noise as further candidates and ask a frozen reference about false negatives."""

    noise_ratio: float
    phi: float
    sigma = 1.0

    def ascend(self, noise: Tensor, pairs: Pairs) -> Tensor:
        """Noise (K, D) after the steps of ascent, detached from the batch."""
        raise NotImplementedError

    def cells(self, anchors: int, candidates: int, device: torch.device) -> int:
        """All of them, with the noise: what the reference says of B x N and the ascent's N x K are not in blocks."""
        return int(anchors * candidates * (1 + self.noise_ratio))

    def diagnostics(self, pairs: Pairs) -> dict[str, float]:
        """As for every loss; the share of the negatives that the reference finds as similar as phi; and by how much
        the ascent changes the cosine of an anchor and a noise vector on average."""
        alike = reference_alike_share(pairs, self.phi)
        return super().diagnostics(pairs) | alike | {"noise_cosine_shift_mean": self.noise_cosine_shift(pairs)}

    @torch.no_grad()
    def noise_cosine_shift(self, pairs: Pairs) -> float:
        """Mean over anchors and noise of |cos(h_i, n_k) after the ascent - before it|; 0 means random noise."""
        noise = draw_noise(pairs, self.noise_ratio, self.sigma)
        if not len(noise):
            return 0.0
        anchors = batch_anchors(pairs).to(noise.dtype)
        return (cosine(anchors, self.ascend(noise, pairs)) - cosine(anchors, noise)).abs().mean().item()


class DCLR(_WithNoise, name="dclr"):
    """-log( e^(s_ii/tau) / (e^(s_ii/tau) + sum_{j!=i} a_ij e^(s_ij/tau) + sum_k a_ik e^(cos(h_i, n_k)/tau)) ), as the
    paper states it (Zhou et al. 2022, section 4), with a_ij = 0 where the frozen reference sees a cosine >= phi.

    The n_k are Gaussian vectors, shared by the batch and moved up the non-uniformity loss before they count. The
    denominator is quoted as one of negatives alone; the positive is in it here, as in the InfoNCE that the paper
    builds on and in its code. Variants of the paper: random noise is ``noise_steps`` 0, self instance weighting,
    knowledge distillation and no weighting are values of ``weighting``, no noise is ``noise_ratio`` 0.
    In large batches the logits go block by block, but the ascent's N x K and what the reference says of B x N do not.

    Args:
        temperature: tau.
        base: whose logits are debiased: infonce as in the paper, or focal.
        m: margin added to a negative's weight, >= 0; in dclr with base focal only, where it is focal's unless given.
        weighting: whose cosine finds false negatives: reference (--reference_model), self (the encoder as it is now)
            or none; distillation removes nothing and adds the divergence from the reference's distribution.
        phi: cosine from which a negative counts as a false negative and is removed; above 1 removes nothing.
        distillation_weight: factor of the divergence with weighting distillation.
        noise_ratio: noise vectors per candidate of the batch.
        sigma: standard deviation of the noise.
        noise_steps: steps of gradient ascent on the non-uniformity loss.
        noise_step_size: length of each of these steps, whatever the length of the gradient.
        tau_u: temperature of the non-uniformity loss.
    """

    formula = (
        "l_i = -log( exp(s_ii/τ) / ( exp(s_ii/τ) + Σ_{j≠i} α_ij exp(s_ij/τ) + Σ_k α_ik exp(cos(h_i, n_k)/τ) ) ), "
        "α = 0 where the reference's cosine ≥ φ, else 1"
    )
    paper = PAPER
    citation = CITATION

    def __init__(
        self,
        temperature: float = 0.05,
        base: str = "infonce",
        m: float | None = None,
        weighting: str = "reference",
        phi: float = 0.9,
        distillation_weight: float = 1.0,
        noise_ratio: float = 1.0,
        sigma: float = 1.0,
        noise_steps: int = 4,
        noise_step_size: float = 1e-3,
        tau_u: float = 0.05,
    ):
        super().__init__()
        debiased: Any = contrastive_term(base, temperature, m)
        one_of("weighting", weighting, WEIGHTINGS)
        self.temperature = positive_number("temperature", temperature)
        self.base = base
        self.m = m
        self.logits, self.hard_margin = debiased.logits, debiased.hard_margin
        self.weighting = weighting
        self.phi = positive_number("phi", phi)
        self.distillation_weight = positive_number("distillation_weight", distillation_weight)
        self.noise_ratio = not_negative("noise_ratio", noise_ratio)
        self.sigma = positive_number("sigma", sigma)
        self.noise_steps = int(not_negative("noise_steps", noise_steps))
        self.noise_step_size = positive_number("noise_step_size", noise_step_size)
        self.tau_u = positive_number("tau_u", tau_u)
        self.needs_reference = weighting in ("reference", "distillation")

    def rows(self, pairs: Pairs) -> Tensor:
        noise = self.ascend(draw_noise(pairs, self.noise_ratio, self.sigma), pairs)  # (K, D)
        removed = torch.cat([self.removed(pairs), self.removed_noise(noise, pairs)], 1)  # (B, N + K)
        extended = with_noise(pairs, noise, removed)
        rows = cross_entropy_rows(extended, self.logits)
        if self.weighting == "distillation":
            rows = rows + self.distillation_weight * self.divergence(pairs)
        return rows

    def ascend(self, noise: Tensor, pairs: Pairs) -> Tensor:
        """Noise (K, D) after ``noise_steps`` steps up the non-uniformity loss of the batch, detached from it."""
        anchors = batch_anchors(pairs)
        for _ in range(self.noise_steps):
            noise = noise + self.noise_step_size * ascent_direction(anchors, noise, self.tau_u)
        return noise

    def removed(self, pairs: Pairs) -> Tensor:
        """(B, N), bool: the candidates with weight 0. `with_noise` keeps the positive in."""
        if self.weighting == "reference":
            return required_reference(pairs, self.name) >= self.phi
        if self.weighting == "self":
            return pairs.cosines().detach() >= self.phi
        return torch.zeros(len(pairs.anchors), len(pairs.candidates), dtype=torch.bool, device=pairs.anchors.device)

    def removed_noise(self, noise: Tensor, pairs: Pairs) -> Tensor:
        """(B, K), bool: the noise with weight 0; the reference judges it only where its vectors are as wide."""
        scorer = {"reference": pairs.reference_anchors, "self": pairs.anchors.detach()}.get(self.weighting)
        if scorer is None or scorer.shape[1] != noise.shape[1]:
            return torch.zeros(len(pairs.anchors), len(noise), dtype=torch.bool, device=noise.device)
        return cosine(scorer, noise) >= self.phi

    def divergence(self, pairs: Pairs) -> Tensor:
        """KL(reference || encoder) of the softmax over the candidates, per anchor: (B,)."""
        hidden = pairs.hidden_mask()
        hidden = torch.zeros_like(pairs.positive_mask()) if hidden is None else hidden
        teacher = (required_reference(pairs, self.name) / self.temperature).masked_fill(hidden, -torch.inf)
        student = (pairs.cosines() / self.temperature).masked_fill(hidden, -torch.inf)
        log_t, log_s = teacher.log_softmax(1), student.log_softmax(1)
        return (log_t.exp() * (log_t - log_s).masked_fill(hidden, 0.0)).sum(1)


class ReleasedDCLR(_WithNoise, name="dclr_released"):
    """What the code released with DCLR computes: it departs from the paper in five points of the loss.

    The ascent climbs the cross entropy over in-batch candidates and noise at tau. Noise is never weighted. A candidate
    is weighted 0 where reference cosine / tau > 20 phi, which is phi only at tau 0.05. The weight multiplies the
    logit, so a candidate of weight 0 still adds e^0 = 1 to the denominator. The loss is the binary cross entropy of
    the softmax over all B x (N + K) cells. Where the released code meets 0 log 0 = NaN (a softmax of exactly 1), the
    cell has no gradient here. All B x (N + K) cells exist at once, whatever the batch.

    Args:
        temperature: tau, of the loss, of the ascent and of the threshold.
        phi: cosine above which a negative counts as a false negative, at tau 0.05.
        noise_ratio: noise vectors per candidate of the batch.
        noise_steps: steps of gradient ascent.
        noise_step_size: length of each of these steps, whatever the length of the gradient.
    """

    formula = (
        "mean over i, j of BCE( softmax_j(w_ij s_ij/τ), [j = i] ), j over candidates and noise, "
        "w = 0 where the reference's cosine/τ > 20 φ"
    )
    paper = PAPER
    citation = CITATION
    needs_reference = True

    def __init__(
        self,
        temperature: float = 0.05,
        phi: float = 0.9,
        noise_ratio: float = 1.0,
        noise_steps: int = 4,
        noise_step_size: float = 1e-3,
    ):
        super().__init__()
        self.temperature = positive_number("temperature", temperature)
        self.phi = positive_number("phi", phi)
        self.noise_ratio = not_negative("noise_ratio", noise_ratio)
        self.noise_steps = int(not_negative("noise_steps", noise_steps))
        self.noise_step_size = positive_number("noise_step_size", noise_step_size)

    def rows(self, pairs: Pairs) -> Tensor:
        noise = self.ascend(draw_noise(pairs, self.noise_ratio, 1.0), pairs)
        weighted = required_reference(pairs, self.name) / self.temperature > 20 * self.phi
        keep = ~(weighted & ~pairs.positive_mask())
        keep = torch.cat([keep, keep.new_ones(len(keep), len(noise))], 1)  # (B, N + K)
        extended = with_noise(pairs, noise, torch.zeros_like(keep))
        positive = extended.positive_mask()
        hidden = ~(extended.negative_mask() | positive)
        logits = extended.cosines() / self.temperature * keep
        log_p = logits.masked_fill(hidden, -torch.inf).log_softmax(1)
        p = log_p.exp().clamp(max=1 - torch.finfo(log_p.dtype).eps)
        return -torch.where(positive, log_p.masked_fill(~positive, 0.0), torch.log1p(-p)).mean(1)

    def ascend(self, noise: Tensor, pairs: Pairs) -> Tensor:
        """Noise (K, D) after ``noise_steps`` steps up the cross entropy over candidates and noise."""
        anchors, candidates = batch_anchors(pairs), pairs.candidates.detach()
        for _ in range(self.noise_steps):
            noise = noise + self.noise_step_size * ascent_direction(anchors, noise, self.temperature, candidates)
        return noise


# ---- noise


def draw_noise(pairs: Pairs, ratio: float, sigma: float) -> Tensor:
    """int(ratio x N) vectors of N(0, sigma^2), (K, D), from ``pairs.seed`` alone where there is one.

    On the CPU, so that every device and process draws the same.
    """
    generator = None if pairs.seed is None else torch.Generator().manual_seed(pairs.seed)
    size = int(ratio * len(pairs.candidates)), pairs.candidates.shape[1]
    wide = torch.float64 if pairs.candidates.dtype == torch.float64 else torch.float32
    return (sigma * torch.randn(size, generator=generator)).to(pairs.candidates.device, wide)


@torch.no_grad()
def ascent_direction(anchors: Tensor, noise: Tensor, temperature: float, candidates: Tensor | None = None) -> Tensor:
    """Unit direction, per noise vector (K, D), in which mean_i log sum_k e^(cos(a_i, n_k)/tau) grows.

    That is the non-uniformity loss, whose positive term does not depend on the noise: its derivative by n_k is
    sum_i P_ik (a_i/|a_i| - cos(a_i, n_k) n_k/|n_k|) / (tau |n_k| B), P the softmax over the noise. With ``candidates``
    (N, D) P is the softmax over candidates and noise, the cross entropy that the released code climbs. A vector
    without a gradient stays where it is.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        a, n = normalize(anchors), normalize(noise)
        similarity = a @ n.T  # (B, K)
        others = [] if candidates is None else [a @ normalize(candidates).T]
        probability = (torch.cat([similarity, *others], 1) / temperature).softmax(1)[:, : len(n)]
        gradient = probability.T @ a - (probability * similarity).sum(0).unsqueeze(1) * n  # (K, D) up to its length
        return normalize(gradient)


def with_noise(pairs: Pairs, noise: Tensor, removed: Tensor) -> Pairs:
    """Pairs with the noise (K, D) as further candidates and ``removed`` (B, N + K) excluded besides equal texts."""
    if pairs.excluded is not None:
        removed = removed | torch.nn.functional.pad(pairs.excluded[:], (0, len(noise)))
    return dataclasses.replace(pairs, candidates=torch.cat([pairs.candidates, noise]), excluded=removed)


def batch_anchors(pairs: Pairs) -> Tensor:
    """The anchors of the whole batch, detached: what the noise is moved by is the same in every process."""
    return (pairs.anchors if pairs.batch_anchors is None else pairs.batch_anchors).detach()


@torch.no_grad()
def reference_alike_share(pairs: Pairs, phi: float) -> dict[str, float]:
    """Of the negatives, how many the frozen reference finds as similar as phi; nothing without a reference."""
    if pairs.reference is None:
        return {}
    alike = pairs.reference[pairs.negative_mask()] >= phi
    return {"reference_alike_share": alike.float().mean().item()}


# ---- settings
