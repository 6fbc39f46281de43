"""Packed sentences against padded ones; attention written out against autograd's."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from tiny import save_tiny
from torch import nn

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss
from hf_focalcse.data.views import tokenize
from hf_focalcse.encoder.augment import build_augmentations
from hf_focalcse.encoder.auto import MODELS
from hf_focalcse.encoder.head import FocalCLMixin
from hf_focalcse.encoder.loading import load_model
from hf_focalcse.encoder.packing import ATTENTION, Packed, Run, _Attend, attend
from hf_focalcse.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = [
    "a man plays the guitar",
    "dog",
    "the old woman reads a small book in the park",
    "a cat",
    "two people run",
]


def model_of(folder, family="bert", pooler="cls", dropout=0.0):
    return load_model(str(save_tiny(folder, family)), pooler, dropout=dropout).train().double()


def views(model):
    batch = tokenize(model.tokenizer, SENTENCES, 32)
    return tuple(batch[key].unsqueeze(1).repeat(1, 2, 1) for key in ("input_ids", "attention_mask"))


def run(model, packing, ids, mask):
    model.packing = packing
    model.zero_grad()
    torch.manual_seed(4)
    vectors = model(ids, mask)
    (vectors * torch.linspace(-1, 1, vectors.numel(), dtype=torch.float64).view_as(vectors)).sum().backward()
    return vectors.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", [config.model_type for config, m in MODELS.items() if m.family.packable])
@pytest.mark.parametrize("pooler", ["cls", "mean", "max", "avg_first_last"])
def test_packed_equals_padded(tmp_path, family, pooler):
    model = model_of(tmp_path, family, pooler)
    assert model.packs
    (packed, gradients), (padded, expected) = (run(model, packing, *views(model)) for packing in (True, False))
    torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-12)
    assert gradients.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(gradients[name], expected[name], rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize("augmentation", ["token_shuffle", "token_cutoff:0.3", "feature_cutoff:0.25"])
@pytest.mark.parametrize("pooler", ["cls", "mean"])
def test_packed_equals_padded_with_an_augmentation(tmp_path, pooler, augmentation):
    model = model_of(tmp_path, "roberta", pooler)
    model.augmentations = build_augmentations([augmentation])
    (packed, gradients), (padded, expected) = (run(model, packing, *views(model)) for packing in (True, False))
    torch.testing.assert_close(packed, padded, rtol=1e-9, atol=1e-12)
    for name in expected:
        torch.testing.assert_close(gradients[name], expected[name], rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize("family", ["bert", "electra", "roberta"])
@pytest.mark.parametrize("packing", [True, False])
def test_the_last_layer_computes_what_the_pooler_reads(tmp_path, family, packing, monkeypatch):
    """The same vectors and gradients as from a whole last layer, of which only the first tokens are looked at."""
    model = model_of(tmp_path, family, "cls")
    rows = []
    handle = model._last_output.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[:2]))
    short = run(model, packing, *views(model))
    assert rows == [(1, 10) if packing else (10, 1)]  # 5 sentences twice
    monkeypatch.setattr(FocalCLMixin, "_last_output", None)
    whole = run(model, packing, *views(model))
    handle.remove()
    assert math.prod(rows[1]) > 10
    torch.testing.assert_close(short[0], whole[0], rtol=1e-9, atol=1e-12)
    for name in whole[1]:
        torch.testing.assert_close(short[1][name], whole[1][name], rtol=1e-8, atol=1e-12, msg=name)


def test_layers_that_are_run_again_in_backward_are_not_cut(tmp_path):
    model = model_of(tmp_path, "bert", "cls")
    plain = run(model, True, *views(model))
    name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # the older name
    getattr(model, f"{name}_checkpointing_enable")()
    assert model._last_output is None and "last layer" not in model.describe_step()
    again = run(model, True, *views(model))
    torch.testing.assert_close(again[0], plain[0], rtol=1e-9, atol=1e-12)
    for name in plain[1]:
        torch.testing.assert_close(again[1][name], plain[1][name], rtol=1e-8, atol=1e-12, msg=name)


def test_embedding_sentences_is_left_to_the_plain_encoder(tmp_path):
    model = model_of(tmp_path, "bert", "cls_before_pooler").eval()
    batch = tokenize(model.tokenizer, SENTENCES, 32)
    expected = model.encoder(**batch).last_hidden_state[:, 0]
    assert torch.equal(model.embed(batch["input_ids"], batch["attention_mask"]), expected)


def test_another_attention_is_not_replaced(tmp_path):
    model = model_of(tmp_path / "a")
    assert model.describe_step() == (
        "sentences packed without padding, attention within each; last layer for first tokens alone"
    )
    assert model.config._attn_implementation == ATTENTION
    model.save_pretrained(tmp_path / "b")
    assert "attn" not in json.dumps(json.loads((tmp_path / "b/config.json").read_text()))
    eager = type(model).from_pretrained(tmp_path / "b", attn_implementation="eager").train()
    assert eager.config._attn_implementation == "eager" and not eager.packs
    eager.set_pooling("mean")
    assert eager.describe_step() == "sentences padded, in groups of similar length, attention eager"


def test_layout():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]])
    packed = Packed.of(mask)
    assert packed.runs == [Run(0, 1, 3), Run(3, 2, 2), Run(7, 1, 1)]  # a row without tokens keeps one
    assert packed.firsts.tolist() == [0, 3, 5, 7]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 0]]
    rows = torch.arange(12).view(4, 3)
    assert packed.pack(rows).tolist() == [[0, 1, 2, 3, 4, 6, 7, 9]]
    back = packed.unpack(packed.pack(rows).unsqueeze(-1)).squeeze(-1)
    assert back.tolist() == [[0, 1, 2], [3, 4, 0], [6, 7, 0], [9, 0, 0]]


# ---- attention


def heads(tokens=9, size=4):
    torch.manual_seed(2)
    return [torch.randn(tokens, 2, size, dtype=torch.float64, requires_grad=True) for _ in range(3)]


RUNS = [Run(0, 2, 3), Run(6, 1, 2), Run(8, 1, 1)]


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_attention_has_the_gradient_of_its_value(p):
    def attention(*parts):
        torch.manual_seed(7)
        return _Attend.apply(*parts, RUNS, 0.5, p)

    assert torch.autograd.gradcheck(attention, heads())


def test_attention_stays_within_sentences():
    query, key, value = heads()
    packed = _Attend.apply(query, key, value, RUNS, 0.5, 0.0)
    for run_ in RUNS:
        for i in range(run_.sentences):
            at = slice(run_.first + i * run_.length, run_.first + (i + 1) * run_.length)
            for head in range(2):
                weights = (query[at, head] @ key[at, head].T * 0.5).softmax(-1)
                torch.testing.assert_close(packed[at, head], weights @ value[at, head])


def test_attention_drops_weights_out():
    """With every value 1 a row of the output is the sum of its kept weights over 1 - p: 1 on average."""
    torch.manual_seed(0)
    query, key = torch.zeros(2, 64 * 50, 2, 1)
    output = _Attend.apply(query, key, torch.ones_like(query), [Run(0, 50, 64)], 1.0, 0.25)
    assert output.mean().item() == pytest.approx(1, abs=0.01) and output.std().item() == pytest.approx(
        math.sqrt(0.25 / 0.75 / 64), rel=0.05
    )


def test_attention_in_bfloat16():
    query, key, value = (part.detach() for part in heads())
    exact = _Attend.apply(query, key, value, RUNS, 0.5, 0.0)
    half = _Attend.apply(*(part.bfloat16() for part in (query, key, value)), RUNS, 0.5, 0.0)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), exact, rtol=0.03, atol=0.03)


def test_without_runs_it_is_sdpa():
    parts = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    output, _ = attend(nn.Module(), *parts, None, is_causal=False)
    expected = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2)
    assert torch.equal(output, expected)


# ---- torch.compile


@pytest.mark.parametrize(
    ("family", "pooler", "backend"),
    [
        pytest.param("bert", "cls", "inductor", marks=pytest.mark.exhaustive),  # which compiles for half a minute
        ("bert", "cls", "aot_eager"),
        ("distilbert", "avg_first_last", "aot_eager"),
    ],
)
def test_a_compiled_encoder_trains_alike(tmp_path, family, pooler, backend):
    """Batches of several lengths through Trainer's own wrapping; views differ by shuffling, dropout is off.

    Traced and differentiated, which is what the code of a family can break; when asked for, down to machine code.
    """
    texts = [" ".join(SENTENCES[i % 5].split()[: 1 + i // 5]) for i in range(20)]

    def losses(compiled):
        layers = {"num_hidden_layers": 1} if backend == "inductor" else {}  # each is compiled alike
        model = load_model(str(save_tiny(tmp_path / str(compiled), family, **layers)), pooler, dropout=0.0)
        model.augmentations = build_augmentations(["token_shuffle"])
        args = FocalCSETrainingArguments(
            output_dir=str(tmp_path / "run"), per_device_train_batch_size=4, max_steps=5, eval_strategy="no",
            save_strategy="no", load_best_model_at_end=False, use_cpu=True, torch_compile=compiled, logging_steps=1,
            torch_compile_backend=backend if compiled else None, disable_tqdm=True,
        )  # fmt: skip
        trainer = FocalCSETrainer(model, args, build_loss("focal"), [{"text": text} for text in texts])
        assert model.compiling == compiled
        trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    assert losses(True) == pytest.approx(losses(False), rel=1e-4)


def test_a_compiled_encoder_is_not_cut(tmp_path):
    model = load_model(str(save_tiny(tmp_path, "bert")), "mean")
    model.augmentations = build_augmentations(["feature_cutoff"])
    args = FocalCSETrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True, torch_compile=True)
    with pytest.raises(UserError, match="--torch_compile does not go with a cutoff"):
        FocalCSETrainer(model, args, build_loss("focal"), [{"text": "a"}] * 64)


def described(base, folder):
    args = FocalCSETrainingArguments(str(folder), use_cpu=True, eval_strategy="no", load_best_model_at_end=False)
    model = load_model(base, "cls")
    trainer = FocalCSETrainer(model, args, build_loss("focal"), [{"text": "a"}] * 64)
    return model.compiling, model.packs, trainer.describe_step()


def test_a_launcher_that_compiles_is_as_the_flag(ranks, tmp_path):
    """``accelerate launch --dynamo_backend`` says it by the environment; hooks do not reach into what it compiles."""
    base = str(save_tiny(tmp_path / "base"))
    for backend, expected in (("EAGER", (True, False)), ("NO", (False, True))):
        ((*found, said),) = ranks(1, described, base, tmp_path / "run", env={"ACCELERATE_DYNAMO_BACKEND": backend})
        assert tuple(found) == expected and ("; compiled" in said) == (backend == "EAGER")


def test_a_compiled_encoder_that_is_not_said_to_be_one_stops(tmp_path, monkeypatch):
    model = model_of(tmp_path)
    # a hook that is not run
    monkeypatch.setattr("hf_focalcse.encoder.head.only_tokens", lambda module, tokens: nullcontext())
    with pytest.raises(RuntimeError, match="set model.compiling before torch.compile"):
        model(*views(model))


def test_what_packing_would_change_is_padded(tmp_path):
    args = FocalCSETrainingArguments(
        str(tmp_path / "run"), use_cpu=True, eval_strategy="no", load_best_model_at_end=False, neftune_noise_alpha=5.0
    )
    model = load_model(str(save_tiny(tmp_path / "base")), "cls")
    assert model.packs
    trainer = FocalCSETrainer(model, args, build_loss("focal"), [{"text": "a"}] * 64)
    assert not model.packs and "padded" in trainer.describe_step()
    assert not load_model(str(save_tiny(tmp_path / "decoder", is_decoder=True)), "mean").packs


def test_a_frozen_encoder_goes_in_chunks(tmp_path):
    model = model_of(tmp_path)
    model.requires_grad_(False)
    model.chunk_size = 2
    assert not model(*views(model)).requires_grad


def test_recomputing_is_known_before_it_is_switched_on(tmp_path):
    """The first lines of a run are said before Trainer switches it on."""

    def made(family, **settings):
        args = FocalCSETrainingArguments(
            output_dir=str(tmp_path / "run"), use_cpu=True, gradient_checkpointing=True, eval_strategy="no",
            load_best_model_at_end=False, **settings,
        )  # fmt: skip
        model = load_model(str(save_tiny(tmp_path / family, family)), "cls")
        return FocalCSETrainer(model, args, build_loss("focal"), [{"text": "a"}] * 64)

    assert "last layer" not in made("bert").describe_step()
    with pytest.raises(
        UserError,
        match="--activation_checkpointing: mpnet does not support activation checkpointing; use --chunk_size 64",
    ):
        made("mpnet")
