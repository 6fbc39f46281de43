"""Masks of the fast dropout: their share, their independence, their seeds and their gradient."""

import math

import pytest
import torch
from torch import nn

from hf_focalcse.encoder.dropout import FastDropout, keep_mask


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_a_mask_keeps_its_share_independently(p):
    torch.manual_seed(0)
    keep, factor = keep_mask(torch.Size([1001, 999]), p)
    n = keep.numel()
    assert factor == pytest.approx(1 / (1 - p), rel=2e-4)
    spread = math.sqrt(p * (1 - p) / n)
    assert abs(keep.double().mean().item() - (1 - p)) < 5 * spread
    flat = keep.flatten().double() - (1 - p)
    for distance in (1, 2, 3, 4, 999):  # four neighbours come from one word
        together = (flat[distance:] * flat[:-distance]).mean().item() / (p * (1 - p))
        assert abs(together) < 5 / math.sqrt(n), distance


def test_a_mask_repeats_with_the_seed_and_not_otherwise():
    torch.manual_seed(1)
    first, second = keep_mask(torch.Size([50]), 0.5)[0], keep_mask(torch.Size([50]), 0.5)[0]
    torch.manual_seed(1)
    assert torch.equal(keep_mask(torch.Size([50]), 0.5)[0], first) and not torch.equal(first, second)


def test_dropout_scales_and_masks_its_gradient():
    torch.manual_seed(0)
    x = torch.randn(200, 300, requires_grad=True)
    y = FastDropout(0.25)(x)
    y.backward(torch.full_like(y, 2.0))
    kept = y != 0
    assert 0.24 < 1 - kept.float().mean() < 0.26
    torch.testing.assert_close(y[kept], (x / 0.75)[kept])
    torch.testing.assert_close(x.grad, torch.where(kept, 2 / 0.75, 0.0))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_at_its_ends_and_in_evaluation(p):
    x = torch.randn(4, 4)
    assert torch.equal(FastDropout(p)(x), nn.Dropout(p)(x))
    assert torch.equal(FastDropout(0.5).eval()(x), x)
