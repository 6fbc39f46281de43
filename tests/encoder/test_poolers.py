"""Every pooler on hidden states whose answer can be written down by hand."""

import pytest
import torch

from hf_focalcse.encoder.poolers import POOLERS, resolve_pooler
from hf_focalcse.errors import UserError

# One sentence of three tokens in a row of four; one dimension. Layers: embeddings, layer 1, layer 2 (last).
LAYERS = tuple(torch.tensor([[[float(x)] for x in row]]) for row in ([1, 2, 3, 90], [10, 20, 30, 91], [4, 8, 6, 92]))
MASK = torch.tensor([[1, 1, 1, 0]])
IDS = torch.tensor([[2, 9, 3, 0]])
BY_HAND = {
    "cls": 4.0,
    "cls_before_pooler": 4.0,
    "mean": (4 + 8 + 6) / 3,
    "max": 8.0,
    "avg_top2": (10 + 20 + 30 + 4 + 8 + 6) / 6,
    "avg_first_last": (10 + 20 + 30 + 4 + 8 + 6) / 6,  # the first layer is hidden state 1
    "avg_embedding_last": (1 + 2 + 3 + 4 + 8 + 6) / 6,
}


@pytest.mark.parametrize("name", POOLERS)
def test_by_hand(name):
    row = POOLERS[name]
    layers = LAYERS if row.all_layers else LAYERS[-1:]
    assert row.pool(layers, MASK, IDS).tolist() == [[pytest.approx(BY_HAND[name])]]


def test_top2_and_first_last_differ_with_more_layers():
    layers = (*LAYERS[:2], torch.full((1, 4, 1), 7.0), LAYERS[-1])
    assert POOLERS["avg_top2"].pool(layers, MASK, IDS).item() == pytest.approx((7 * 3 + 18) / 6)
    assert POOLERS["avg_first_last"].pool(layers, MASK, IDS).item() == pytest.approx((60 + 18) / 6)


def test_only_cls_has_the_projection():
    assert [name for name, row in POOLERS.items() if row.projection] == ["cls"]


def test_names():
    assert resolve_pooler("avg") == "mean"
    with pytest.raises(UserError, match="no pooler 'means', did you mean 'mean'"):
        resolve_pooler("means")
