"""Augmentations: their effect on literal small batches, the same under chunking, nothing in eval, every family."""

import copy

import pytest
import torch
from tiny import CONFIGS, SENTENCES, save_tiny
from transformers import BertModel, RobertaModel, set_seed

from hf_focalcse.data.views import tokenize
from hf_focalcse.encoder.augment import (
    AUGMENTATIONS,
    Drawn,
    build_augmentation,
    build_augmentations,
    draw_views,
    random_ranks,
)
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.errors import UserError

MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]])  # 10 tokens and 4
FAMILIES = list(CONFIGS)
TEXTS = ["token_shuffle", "token_cutoff:0.3", "feature_cutoff:0.25", "span_cutoff:0.5"]


def draw(text, seed=0, mask=MASK, dimensions=8):
    torch.manual_seed(seed)
    return build_augmentation(text).draw(mask, dimensions)


# ---- on a literal batch


def test_dropout_does_nothing_more():
    assert draw("dropout") == Drawn()


def test_token_shuffle_permutes_the_tokens_and_leaves_the_padding():
    orders = [draw("token_shuffle", seed).order for seed in range(200)]
    for order in orders:
        assert order[0].sort().values.tolist() == list(range(10))
        assert order[1, :4].sort().values.tolist() == [0, 1, 2, 3]
        assert order[1, 4:].tolist() == [4, 5, 6, 7, 8, 9]
    # [CLS] moves too, as in ConSERT: it is found at each place about equally often
    places = torch.stack([(order[1] == 0).nonzero().squeeze() for order in orders])
    assert torch.bincount(places, minlength=4)[:4].min() > 30
    assert draw("token_shuffle", 0).order.tolist() == [[2, 3, 4, 8, 6, 0, 9, 5, 1, 7], [2, 3, 0, 1, 4, 5, 6, 7, 8, 9]]


def test_token_cutoff_zeroes_the_share_of_tokens():
    for seed in range(50):
        tokens = draw("token_cutoff:0.3", seed).tokens
        assert (~tokens).sum(1).tolist() == [3, 1]  # int(10 x 0.3), int(4 x 0.3)
        assert tokens[1, 4:].all()
    assert (~draw("token_cutoff:0.3", 0).tokens).nonzero().tolist() == [[0, 2], [0, 3], [0, 4], [1, 2]]
    assert (~torch.stack([draw("token_cutoff:0.3", s).tokens for s in range(50)])).any(0)[MASK.bool()].all()


def test_span_cutoff_zeroes_tokens_in_a_row():
    starts = set()
    for seed in range(100):
        tokens = draw("span_cutoff:0.5", seed).tokens
        for row, n in enumerate((10, 4)):
            gone = (~tokens[row]).nonzero().flatten().tolist()
            assert gone == list(range(gone[0], gone[0] + n // 2)) and gone[-1] < n
            starts.add((n, gone[0]))
    assert starts == {(10, s) for s in range(6)} | {(4, s) for s in range(3)}


def test_feature_cutoff_zeroes_the_same_features_at_all_tokens():
    features = draw("feature_cutoff:0.25").features
    assert (~features).sum(1).tolist() == [2, 2]  # int(8 x 0.25)
    keep = draw("feature_cutoff:0.25").keep()
    assert keep.shape == (2, 1, 8) and torch.equal(keep[:, 0], features)
    assert len({tuple(draw("feature_cutoff:0.25", s).features[0].tolist()) for s in range(50)}) > 15


def test_each_view_has_its_own():
    mask = MASK.unsqueeze(1).repeat(1, 2, 1)
    torch.manual_seed(0)
    drawn = draw_views(build_augmentations(["feature_cutoff:0.25", "token_shuffle"]), mask, 8)
    assert (~drawn.features).sum(1).tolist() == [2, 0, 2, 0]  # rows: sentence 1 view 1, view 2, sentence 2 view 1, …
    moved = (drawn.order != torch.arange(10)).any(1)
    assert moved.tolist() == [False, True, False, True] and drawn.tokens is None
    both = draw_views(build_augmentations(["token_cutoff:0.3"]), mask, 8)
    assert (~both.tokens).sum(1).tolist() == [3, 3, 1, 1] and not torch.equal(both.tokens[0], both.tokens[1])


def test_repeats_with_the_seed():
    for text in TEXTS:
        a, b, c = (draw(text, seed) for seed in (3, 3, 4))
        mine = [getattr(a, n) for n in ("order", "tokens", "features") if getattr(a, n) is not None]
        again = [getattr(b, n) for n in ("order", "tokens", "features") if getattr(b, n) is not None]
        other = [getattr(c, n) for n in ("order", "tokens", "features") if getattr(c, n) is not None]
        assert torch.equal(mine[0], again[0]) and not torch.equal(mine[0], other[0])


def test_ranks_are_uniform():
    torch.manual_seed(0)
    ranks = random_ranks(torch.ones(4000, 4, dtype=torch.long))
    assert (
        torch.stack([torch.bincount(ranks[:, i], minlength=4) for i in range(4)]).float().sub(1000).abs().max() < 150
    )


# ---- in the encoder


def views(model):
    batch = tokenize(model.tokenizer, SENTENCES, 32)
    return tuple(batch[k].unsqueeze(1).repeat(1, 2, 1) for k in ("input_ids", "attention_mask"))


def load(folder, family="bert", pooler="mean", texts=("dropout",), dropout=0.0):
    model = load_model(str(save_tiny(folder, family)), pooler, dropout=dropout).train()
    model.augmentations = build_augmentations(texts)
    return model


FIRST_LAYER = {
    "albert": "encoder.albert_layer_groups.0.albert_layers.0",
    "distilbert": "transformer.layer.0",
    "modernbert": "layers.0",
}


def hidden(model, seed=0):
    """What the first layer reads, of the whole batch as one group."""
    seen = []
    layer = model.encoder.get_submodule(FIRST_LAYER.get(model.config.model_type, "encoder.layer.0"))
    handle = layer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    set_seed(seed)
    model(*views(model))
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_cutoffs_zero_the_output_of_the_embedding_layer(tmp_path, family):
    """16 rows of one group, longest first: the first two are the views of the longest sentence."""
    model = load(tmp_path, family, texts=("feature_cutoff:0.25", "token_cutoff:0.3"))
    model.packing = False  # the encoder is looked into
    zero = hidden(model) == 0
    assert zero.shape[0] == 16
    n = int(views(model)[1][3, 0].sum())
    assert zero[0].all(0).sum() == 4 and zero[0].sum() == 4 * zero.shape[1]  # view 1: 4 of 16 features, at all tokens
    gone = zero[1, :n].all(1)
    assert gone.sum() == int(n * 0.3) and zero[1, :n].sum() == 16 * int(n * 0.3)  # view 2: whole tokens
    model.eval()
    assert not (hidden(model) == 0).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_token_shuffle_gives_every_token_another_place(tmp_path, family):
    """Mean over the tokens of layer 0 changes by positions alone; [CLS] is pooled wherever it went."""
    model = load(tmp_path, family, "cls_before_pooler", ("dropout", "token_shuffle")).double()
    set_seed(0)
    vectors = model(*views(model))
    plain = copy.deepcopy(model)
    plain.augmentations = ()
    expected = plain(*views(model))
    torch.testing.assert_close(vectors[:, 0], expected[:, 0])
    changed = (vectors[:, 1] - expected[:, 1]).abs().amax(1) > 1e-9
    assert changed.sum() >= 7  # one sentence has three tokens, whose shuffle may be none
    # the first layer reads the same words in another order
    model.packing = False
    model.augmentations = build_augmentations(["token_shuffle"])
    words = model.encoder.get_input_embeddings()
    seen = []
    handle = words.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    set_seed(0)
    model(*views(model))
    handle.remove()
    mine, ids = seen[0], views(model)[0].reshape(-1, views(model)[0].shape[-1])
    assert sorted(map(tuple, mine.sort(1).values.tolist())) == sorted(map(tuple, ids.sort(1).values.tolist()))


@pytest.mark.parametrize(("family", "plain", "offset"), [("bert", BertModel, 0), ("roberta", RobertaModel, 1)])
def test_token_shuffle_equals_permuted_position_ids(tmp_path, family, plain, offset):
    """The way the papers do it: tokens stay, position ids are permuted; RoBERTa's begin behind the padding index."""
    for pooler in ("cls_before_pooler", "mean", "avg_first_last"):
        model = load(tmp_path / pooler, family, pooler).double()
        batch = tokenize(model.tokenizer, SENTENCES, 32)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        torch.manual_seed(5)
        drawn = build_augmentation("token_shuffle").draw(mask, 16)
        ours = model.embed(ids, mask, drawn)
        encoder = model.encoder
        assert isinstance(encoder, plain)
        place = drawn.order.argsort(1) + offset  # token i is read at place[i]
        output = encoder(input_ids=ids, attention_mask=mask, position_ids=place, output_hidden_states=True)
        layers = output.hidden_states
        weights = mask.unsqueeze(-1).double()
        theirs = {
            "cls_before_pooler": layers[-1][:, 0],
            "mean": (layers[-1] * weights).sum(1) / weights.sum(1),
            "avg_first_last": ((layers[1] + layers[-1]) / 2 * weights).sum(1) / weights.sum(1),
        }[pooler]
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text", ["dropout", *TEXTS])
@pytest.mark.parametrize("family", ["albert", "bert", "mpnet", "modernbert", "electra"])
def test_chunked_equals_whole(tmp_path, family, text):
    """Values bit for bit where a row is encoded in equally long company, gradients to rounding; dropout off."""
    model = load(tmp_path, family, texts=(text, "token_shuffle")).double()
    direction = torch.randn(len(SENTENCES), 2, 16, dtype=torch.float64)

    def run(chunk):
        model.chunk_size = chunk
        model.zero_grad()
        set_seed(0)
        vectors = model(*views(model))
        (vectors * direction).sum().backward()
        return vectors.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    whole, gradient = run(None)
    for chunk in (1, 3, 16):
        vectors, chunked = run(chunk)
        torch.testing.assert_close(vectors, whole, rtol=0, atol=1e-13)
        for name, value in gradient.items():
            torch.testing.assert_close(chunked[name], value, rtol=1e-13, atol=1e-11)
    set_seed(1)
    other = model(*views(model))
    assert torch.allclose(other, whole) is False


@pytest.mark.parametrize("text", TEXTS)
def test_chunked_equals_whole_bit_for_bit(tmp_path, text):
    """Sentences of one length, so that chunks are not trimmed otherwise than the whole."""
    model = load(tmp_path, texts=(text,))
    batch = tokenize(
        model.tokenizer, ["a man plays the guitar", "the cat sleeps under water", "two red dogs runs"], 32
    )
    ids, mask = (batch[k][:, None].repeat(1, 2, 1) for k in ("input_ids", "attention_mask"))
    results = []
    for chunk in (None, 1, 2, 6):
        model.chunk_size = chunk
        set_seed(0)
        drawn = draw_views(model.augmentations, mask, 16)
        rows = torch.arange(6)
        parts = [drawn.of(r, ids.shape[2]) for r in rows.split(chunk or 6)]
        results.append([torch.cat([x for p in parts if (x := getattr(p, n)) is not None]) for n in
                        ("order", "tokens", "features") if getattr(drawn, n) is not None])  # fmt: skip
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    values = []
    for chunk in (None, 6):
        model.chunk_size = chunk
        set_seed(0)
        values.append(model(ids, mask))
    assert torch.equal(*values)


def test_nothing_happens_in_eval_and_in_encode(tmp_path):
    model = load(tmp_path, texts=("feature_cutoff:0.5", "token_shuffle"))
    plain = copy.deepcopy(model)
    plain.augmentations = ()
    before = torch.get_rng_state()
    assert torch.equal(model.eval()(*views(model)), plain.eval()(*views(model)))
    assert (model.encode(SENTENCES) == plain.encode(SENTENCES)).all()
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_alone_draws_nothing_new(tmp_path):
    """A run without augmentation is bit for bit what it was."""
    model = load(tmp_path, dropout=0.1)
    set_seed(0)
    first = model(*views(model))
    model.augmentations = ()
    set_seed(0)
    assert torch.equal(model(*views(model)), first)


# ---- refusals


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["token_shufle"], "no augmentation 'token_shufle', did you mean 'token_shuffle'"),
        (["token_shuffle:0.2"], "token_shuffle has no rate"),
        (["dropout:0.2"], "its rate is --dropout"),
        (["token_cutoff:1.5"], "rate in 'token_cutoff:1.5' must be a number above 0 and below 1"),
        (["token_cutoff:much"], "rate in 'token_cutoff:much' must be"),
        (["dropout", "dropout", "dropout"], "3 augmentations are given .* for 2 views"),
    ],
)
def test_refuses_with_the_remedy(texts, message):
    with pytest.raises(UserError, match=message):
        build_augmentations(texts)


def test_refuses_another_number_of_views(tmp_path):
    model = load(tmp_path)
    ids, mask = views(model)
    with pytest.raises(UserError, match="2 augmentations for 3 views"):
        model(ids[:, [0, 0, 1]], mask[:, [0, 0, 1]])


def test_names():
    assert list(AUGMENTATIONS) == ["dropout", "token_shuffle", "token_cutoff", "feature_cutoff", "span_cutoff"]
