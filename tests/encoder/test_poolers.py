"""Every pooler on hidden states whose answer can be written down by hand."""

import pytest
import torch
from tiny import VOCABULARY, save_tiny

from hf_focalcse.data.views import tokenize
from hf_focalcse.encoder.augment import build_augmentation
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.poolers import POOLERS, Pooler, pooler_of, resolve_pooler
from hf_focalcse.errors import UserError

# One sentence of three tokens in a row of four; one dimension. Layers: embeddings, layer 1, layer 2 (last).
LAYERS = tuple(torch.tensor([[[float(x)] for x in row]]) for row in ([1, 2, 3, 90], [10, 20, 30, 91], [4, 8, 6, 92]))
MASK = torch.tensor([[1, 1, 1, 0]])
MASK_ID = VOCABULARY.index("[MASK]")
IDS = torch.tensor([[2, 9, 3, 0]])
BY_HAND = {
    "cls": 4.0,
    "cls_before_pooler": 4.0,
    "mask": 4.0,  # the encoder marks the mask token alone, see tests/objectives/test_prompt.py
    "mean": (4 + 8 + 6) / 3,
    "max": 8.0,
    "mean_sqrt_len": (4 + 8 + 6) / 3**0.5,
    "weighted_mean": (1 * 4 + 2 * 8 + 3 * 6) / 6,
    "last": 6.0,
    "avg_top2": (10 + 20 + 30 + 4 + 8 + 6) / 6,
    "avg_first_last": (10 + 20 + 30 + 4 + 8 + 6) / 6,  # the first layer is hidden state 1
    "avg_embedding_last": (1 + 2 + 3 + 4 + 8 + 6) / 6,
}


@pytest.mark.parametrize("name", POOLERS)
def test_by_hand(name):
    row = POOLERS[name]
    layers = LAYERS if row.all_layers else LAYERS[-1:]
    assert row.pool(layers, MASK, IDS).tolist() == [[pytest.approx(BY_HAND[name])]]


def test_concatenation_is_in_the_order_given():
    found = pooler_of("last+mean").pool(LAYERS[-1:], MASK, IDS)
    assert found.tolist() == [[6.0, pytest.approx(6.0)]]
    assert pooler_of("avg+last").sentence_transformers == ("mean_tokens", "lasttoken")
    with pytest.raises(UserError, match="'avg_top2' cannot be concatenated"):
        resolve_pooler("mean+avg_top2")


def test_the_first_and_the_last_token_are_those_of_the_mask():
    mask = torch.tensor([[0, 1, 1, 0]])
    assert POOLERS["cls"].pool(LAYERS[-1:], mask, IDS).item() == 8
    assert POOLERS["last"].pool(LAYERS[-1:], mask, IDS).item() == 6


def test_top2_and_first_last_differ_with_more_layers():
    layers = (*LAYERS[:2], torch.full((1, 4, 1), 7.0), LAYERS[-1])
    assert POOLERS["avg_top2"].pool(layers, MASK, IDS).item() == pytest.approx((7 * 3 + 18) / 6)
    assert POOLERS["avg_first_last"].pool(layers, MASK, IDS).item() == pytest.approx((60 + 18) / 6)


def test_only_two_have_the_projection():
    assert [name for name, row in POOLERS.items() if row.projection] == ["cls", "mask"]


def test_names():
    assert resolve_pooler("avg") == "mean"
    with pytest.raises(UserError, match="no pooler 'means', did you mean 'mean'"):
        resolve_pooler("means")


def test_a_pooler_reads_the_ids_of_the_sentence(tmp_path, monkeypatch):
    """One that takes the token [MASK], wherever it stands: padded, packed, in chunks and with shuffled tokens."""

    def at_mask(layers, mask, ids):
        return layers[-1][ids == MASK_ID]

    monkeypatch.setitem(POOLERS, "at_mask", Pooler(at_mask, "None"))
    model = load_model(str(save_tiny(tmp_path)), "at_mask", dropout=0.0).train().double()
    texts = ["a man [MASK] the guitar", "[MASK]", "the old woman reads a small [MASK]"]
    batch = tokenize(model.tokenizer, texts, 16)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        expected = model.encoder(ids, mask).last_hidden_state[ids == MASK_ID]
        for packing, chunk_size in ((False, None), (True, None), (True, 2)):
            model.packing, model.chunk_size = packing, chunk_size
            torch.testing.assert_close(model(ids, mask), expected)
        torch.manual_seed(1)
        drawn = build_augmentation("token_shuffle").draw(mask, 16)
        read = ids.gather(1, drawn.order)
        expected = model.encoder(read, mask).last_hidden_state[read == MASK_ID]
        torch.testing.assert_close(model.embed(ids, mask, drawn), expected)
