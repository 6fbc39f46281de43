"""How hard InfoNCE and focal push an anchor from each negative: the derivatives of both losses by the cosine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..losses import build_loss
from ..losses.base import Pairs


def gradient_weights(pairs: Pairs, temperature: float, m: float) -> tuple[Tensor, Tensor, Tensor]:
    """The weight with which each loss pushes anchor i from its negative j: (B, N) for InfoNCE, focal, and their ratio.

    The weight is d l_i / d s_ij, with l_i the loss of anchor i (a batch divides all by B) and s_ij the cosine:

        InfoNCE  w_ij = P_ij / tau                 P_i = softmax over k of s_ik / tau
        focal    w_ij = Q_ij (2 s_ij + m) / tau    Q_i = softmax over k of s_ik (s_ik + m) / tau, s_ii^2 / tau at k = i

    Candidates that the pairs exclude, such as equal texts, are left out of both. Focal's weight is negative below
    s = -m/2, where focal pulls. Positives and excluded candidates are nan; the result is float64.
    """
    cosines = pairs.cosines().cpu().double()  # not every device has float64
    positive, negative = pairs.positive_mask().cpu(), pairs.negative_mask().cpu()
    log_shares = []
    for loss in (build_loss("infonce", temperature=temperature), build_loss("focal", temperature=temperature, m=m)):
        logits: Tensor = loss.logits(cosines, positive)  # type: ignore[operator]
        log_shares.append(logits.masked_fill(~(negative | positive), -torch.inf).log_softmax(1))
    slope = 2 * cosines + m
    weights = log_shares[0].exp() / temperature, log_shares[1].exp() * slope / temperature
    ratio = (
        log_shares[1] - log_shares[0]
    ).exp() * slope  # from logarithms, since both shares may be too small to divide
    return tuple(found.masked_fill(~negative, torch.nan) for found in (*weights, ratio))  # type: ignore[return-value]


def share_gain(infonce: np.ndarray, focal: np.ndarray) -> np.ndarray:
    """Weights (B, N) of both losses -> by how much a negative's share of its anchor's push grows under focal, -1 to 1.

    The share is w_ij / sum over k of |w_ik|. Focal's other positive logit multiplies all weights of an anchor by one
    factor, which the share does not contain; and unlike the ratio of two weights, it is small if both are tiny.
    """
    with np.errstate(invalid="ignore"):  # an anchor without negatives has no push
        shares = [of / np.nansum(np.abs(of), axis=1, keepdims=True) for of in (infonce, focal)]
    return shares[1] - shares[0]
