"""Our losses in SentenceTransformerTrainer: the same numbers as our trainer, in one process and in two."""

import inspect

import numpy as np
import pytest
import torch

pytest.importorskip("sentence_transformers")
from datasets import Dataset
from oracles import focal_rows, infonce_rows
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, MatryoshkaLoss
from tiny import SENTENCES, save_tiny

from hf_focalcse import FocalCSETrainer, FocalCSETrainingArguments, build_loss, load_model
from hf_focalcse.errors import UserError
from hf_focalcse.losses import settings_of
from hf_focalcse.losses.dclr import DCLR
from hf_focalcse.losses.focal import FocalInfoNCE
from hf_focalcse.sentence_transformers import COMMON, DCLRLoss, FocalInfoNCELoss, InfoNCELoss, RankCSELoss, text_ids

LOSSES = {"focal": FocalInfoNCELoss, "infonce": InfoNCELoss, "dclr": DCLRLoss, "rankcse": RankCSELoss}
TEXTS = [f"{a} {b}" for a in SENTENCES for b in ("today", "in a house")]  # one batch of 16, or two of 8
STEP = {
    "max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
    "use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no", "eval_strategy": "no",
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Large weights, so that vectors differ, and no dropout."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder = tmp_path_factory.mktemp("st")
    save_tiny(folder / "base-teacher", seed=1, initializer_range=0.4)
    return str(save_tiny(folder / "base", initializer_range=0.4, **rates))


def one_step(folder, base, loss, batch, theirs, columns=None):
    """(loss of the first step on this rank, the encoder's weights after it) by either trainer."""
    torch.set_num_threads(1)
    step = STEP | {"output_dir": str(folder), "per_device_train_batch_size": batch}
    settings = {"weighting": "none", "noise_ratio": 0.0} if loss == "dclr" else {}
    data = Dataset.from_dict(columns or {"text": TEXTS})
    teacher = f"{base}-teacher" if loss == "rankcse" else None
    if theirs:
        model = SentenceTransformer(base, device="cpu")
        settings |= {"reference": SentenceTransformer(teacher, device="cpu")} if teacher else {}
        trainer = SentenceTransformerTrainer(
            model=model, args=SentenceTransformerTrainingArguments(**step), train_dataset=data,
            loss=LOSSES[loss](model, **settings),
        )  # fmt: skip
        encoder = model[0].auto_model if hasattr(model[0], "auto_model") else model[0].model
    else:
        model = load_model(base, "mean", dropout=1e-9)  # a rate of 0 is refused
        args = FocalCSETrainingArguments(load_best_model_at_end=False, **step)
        reference = load_model(teacher, "mean") if teacher else None
        trainer = FocalCSETrainer(model, args, build_loss(loss, **settings), data, reference=reference)
        encoder = model.encoder
    losses, compute = [], trainer.compute_loss

    def keep(*args, **kwargs):
        found = compute(*args, **kwargs)
        losses.append((found[0] if isinstance(found, tuple) else found).item())
        return found

    trainer.compute_loss = keep
    trainer.train()
    return losses[0], {name: p.detach().numpy().copy() for name, p in encoder.named_parameters()}


@pytest.mark.parametrize("loss", list(LOSSES))
def test_the_first_step_is_that_of_our_trainer(tmp_path, base, loss, ranks):
    ours, weights = one_step(tmp_path / "ours", base, loss, 16, theirs=False)
    alone, alone_weights = one_step(tmp_path / "theirs", base, loss, 16, theirs=True)
    assert alone == pytest.approx(ours, abs=1e-6)
    moved = {name for name in weights if not np.array_equal(weights[name], before(base)[name])}
    assert len(moved) > len(weights) / 2
    for name in moved:
        np.testing.assert_allclose(alone_weights[name], weights[name], atol=1e-5, err_msg=name)
    if loss == "infonce":  # the others show what infonce does
        return
    two_ours = ranks(2, one_step, tmp_path / "ours2", base, loss, 8, False)
    two = ranks(2, one_step, tmp_path / "theirs2", base, loss, 8, True)
    assert np.mean([value for value, _ in two]) == pytest.approx(ours, abs=1e-6)
    assert np.mean([value for value, _ in two_ours]) == pytest.approx(ours, abs=1e-6)
    for name in moved:  # the gather's gradient is exact: two processes move the weights as one does
        for _, of_rank in two:
            np.testing.assert_allclose(of_rank[name], weights[name], atol=1e-5, err_msg=name)


def before(base):
    return {name: p.detach().numpy() for name, p in load_model(base, "mean").encoder.named_parameters()}


def test_two_columns_are_anchors_and_positives_and_further_ones_hard_negatives(base):
    model = SentenceTransformer(base, device="cpu")
    z = [model.encode(texts, convert_to_tensor=True) for texts in (SENTENCES, SENTENCES[::-1], SENTENCES[2:] * 2)]
    z = [vectors[: len(SENTENCES)] for vectors in z]
    columns = [model.tokenize(texts) for texts in (SENTENCES, SENTENCES[::-1], (SENTENCES[2:] * 2)[:8])]
    a, b, c = (vectors.double().numpy() for vectors in z)
    two, three = (InfoNCELoss(model)(columns[:n]).item() for n in (2, 3))
    assert two == pytest.approx(np.mean(infonce_rows(a, b, 0.05)), rel=1e-4)
    assert three == pytest.approx(np.mean(infonce_rows(a, np.concatenate([b, c]), 0.05)), rel=1e-4)
    focal = FocalInfoNCELoss(model, temperature=0.1, m=0.2)(columns[:2]).item()
    assert focal == pytest.approx(np.mean(focal_rows(a, b, 0.1, 0.2)), rel=1e-4)


def test_equal_texts_are_no_negatives_whatever_their_padding(base):
    model = SentenceTransformer(base, device="cpu")
    features = model.tokenize([SENTENCES[0], SENTENCES[5], SENTENCES[0]])
    first, second, third = text_ids(features, "x").tolist()
    assert first == third != second
    alone = text_ids(model.tokenize([SENTENCES[5]]), "x").tolist()
    assert alone == [second]
    masked = FocalInfoNCELoss(model)([features]).item()
    assert masked < FocalInfoNCELoss(model, mask_duplicates=False)([features]).item()
    with pytest.raises(UserError, match="give mask_duplicates=False"):
        FocalInfoNCELoss(model)([{"pixel_values": torch.zeros(2, 3)}])
    rows = [row[mask.bool()] for row, mask in zip(features["input_ids"], features["attention_mask"], strict=True)]
    starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    joined = {"input_ids": torch.cat(rows).unsqueeze(0), "cu_seq_lens_q": starts.int()}  # for flash attention
    bags = {"input_ids": torch.cat(rows), "offsets": starts[:-1]}  # for a StaticEmbedding
    for other in (joined, bags):
        assert text_ids(other, "x").tolist() == [first, second, third]


def test_dropout_makes_the_two_views_of_a_column_and_without_it_a_warning_says_so(tmp_path, base, caplog):
    noisy = SentenceTransformer(str(save_tiny(tmp_path / "noisy")), device="cpu").train()
    seen = []
    loss = InfoNCELoss(noisy)
    loss.criterion.forward = lambda pairs: seen.append(pairs) or pairs.anchors.sum()
    loss([noisy.tokenize(SENTENCES)])
    assert not torch.equal(seen[0].anchors, seen[0].candidates) and "both views" not in caplog.text
    still = SentenceTransformer(base, device="cpu").train()
    InfoNCELoss(still)([still.tokenize(SENTENCES)], labels=torch.ones(8))
    assert "both views of every sentence are equal" in caplog.text
    assert "InfoNCELoss does not use the label column" in caplog.text


def test_a_loss_of_one_column_without_dropout_is_said_to_judge_nothing(base, caplog):
    model = SentenceTransformer(base, device="cpu").eval()
    with torch.no_grad():
        FocalInfoNCELoss(model)([model.tokenize(SENTENCES), model.tokenize(SENTENCES)])
        assert "without dropout" not in caplog.text
        FocalInfoNCELoss(model).eval()([model.tokenize(SENTENCES)])
    assert "says only how far apart different sentences lie; judge by an evaluator" in caplog.text


def test_a_frozen_encoder_of_other_tokens_reads_the_text(tmp_path, base):
    """A bigger vocabulary, or a smaller length, and the text is what the tokens of the batch stand for."""
    model = SentenceTransformer(base, device="cpu")
    teacher = SentenceTransformer(f"{base}-teacher", device="cpu")
    features = [model.tokenize(SENTENCES)]
    same = RankCSELoss(model, reference=teacher)
    seen = []
    same.criterion.forward = lambda pairs: seen.append(pairs) or pairs.anchors.sum()
    same([dict(features[0])])
    other = SentenceTransformer(f"{base}-teacher", device="cpu")
    other.tokenizer.add_tokens(["notaword"])
    loss = RankCSELoss(model, reference=[other, teacher])
    loss.criterion.forward = same.criterion.forward
    loss([dict(features[0])])
    decoded = model.tokenizer.batch_decode(features[0]["input_ids"], skip_special_tokens=True)
    own, others = (
        of.encode(texts, normalize_embeddings=True) for of, texts in ((teacher, SENTENCES), (other, decoded))
    )
    np.testing.assert_allclose(seen[0].reference, own @ own.T, atol=1e-5)
    np.testing.assert_allclose(seen[1].reference, (own @ own.T + others @ others.T) / 2, atol=1e-5)
    assert not any(pairs.reference.requires_grad for pairs in seen)
    assert not any(name.startswith("_references") for name, _ in loss.named_parameters())
    assert all("teacher" not in name for name in loss.state_dict())
    assert loss.get_config_dict()["reference"] == ["base-teacher", "base-teacher"]
    assert DCLRLoss(model, reference=teacher).criterion.weighting == "reference"


def test_what_a_loss_draws_is_of_the_batch(base):
    model = SentenceTransformer(base, device="cpu")
    loss, seeds = DCLRLoss(model), []
    loss.criterion.forward = lambda pairs: seeds.append(pairs.seed) or pairs.anchors.sum()
    for texts in (SENTENCES, SENTENCES, SENTENCES[:4]):
        loss([model.tokenize(texts)])
    assert seeds[0] == seeds[1] != seeds[2]


def test_losses_that_look_at_each_layer_go_around_two_columns(base):
    model = SentenceTransformer(base, device="cpu").train()
    loss = AdaptiveLayerLoss(model, FocalInfoNCELoss(model))
    columns = [model.tokenize(SENTENCES), model.tokenize(SENTENCES[::-1])]
    assert loss([dict(column) for column in columns], None).isfinite()
    with pytest.raises(UserError, match="need both views of a sentence in the data set: give a second column"):
        loss([dict(columns[0])], None)


def test_sizes_are_those_of_sentence_transformers_own_wrapper(base):
    model = SentenceTransformer(base, device="cpu").eval()
    weights = {"matryoshka_dims": [16, 8, 3], "matryoshka_weights": [1.0, 0.5, 2.0]}
    features = [model.tokenize(SENTENCES), model.tokenize(SENTENCES[::-1])]
    ours = FocalInfoNCELoss(model, **weights)
    theirs = MatryoshkaLoss(model, FocalInfoNCELoss(model), **weights)
    value = ours([dict(part) for part in features])
    torch.testing.assert_close(value, theirs([dict(part) for part in features], None))
    assert ours.get_config_dict()["matryoshka_dims"] == [16, 8, 3]
    assert "kusupati2022matryoshka" in ours.citation


def test_settings_are_those_of_the_loss_and_go_on_the_card(base):
    model = SentenceTransformer(base, device="cpu")
    loss = FocalInfoNCELoss(model, m=0.2)
    assert loss.get_config_dict() == {
        **{k: v for k, v in build_loss("focal", m=0.2).config.items() if k != "name"},
        "mask_duplicates": True,
        "negatives": "global",
    }
    assert "hou2023focal" in loss.citation and "zhou2022dclr" in DCLRLoss(model).citation
    assert DCLRLoss(model).criterion.weighting == "self" and DCLRLoss(model).criterion.needs_reference is False
    for kind, settings in ((FocalInfoNCELoss, FocalInfoNCE), (DCLRLoss, DCLR)):
        named = inspect.signature(kind).parameters
        reference = ["reference"] if kind.compares else []
        assert list(named) == ["model", *COMMON, *reference, *settings_of(settings)]
    assert inspect.signature(DCLRLoss).parameters["weighting"].default == "self"
    with pytest.raises(UserError, match="has no setting 'margin'.*it has: temperature, m"):
        FocalInfoNCELoss(model, margin=0.3)
    for wrong, message in (
        (lambda: DCLRLoss(model, weighting="reference"), "no frozen encoder to compare with.*or leave weighting out"),
        (lambda: RankCSELoss(model), r"give reference=SentenceTransformer\('…'\)$"),
        (lambda: RankCSELoss(model, reference=model), "is the model that is trained"),
        (lambda: RankCSELoss(model, reference="bert-base-uncased"), "reference is 'bert-base-uncased'; give a frozen"),
        (lambda: RankCSELoss(model, reference=[load_model(base, "mean")] * 3), "at most 2 frozen encoder"),
        (lambda: FocalInfoNCELoss(model, scale=20.0), "has no scale: it is 1/temperature"),
        (lambda: FocalInfoNCELoss(model, gather_across_devices=True), "negatives are those of all processes unless"),
        (lambda: FocalInfoNCELoss(load_model(base, "mean")), "the model is an encoder of load_model: give FocalCSE"),
        (lambda: FocalInfoNCELoss(model, reference=load_model(base, "mean")), "compares with no frozen encoder"),
    ):
        with pytest.raises(UserError, match=message):
            wrong()
    with pytest.raises(UserError, match="takes the SentenceTransformer .* as its first argument, not 0.05"):
        FocalInfoNCELoss(0.05)
    with pytest.raises(UserError, match="negatives is 'all'"):
        InfoNCELoss(model, negatives="all")


def test_the_card_of_sentence_transformers_names_the_loss(tmp_path, base):
    model = SentenceTransformer(base, device="cpu")
    args = SentenceTransformerTrainingArguments(**STEP | {"output_dir": str(tmp_path), "learning_rate": 1e-9})
    loss = FocalInfoNCELoss(model, m=0.2)
    SentenceTransformerTrainer(
        model=model, args=args, train_dataset=Dataset.from_dict({"text": TEXTS}), loss=loss
    ).train()
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved/README.md").read_text()
    assert "FocalInfoNCELoss" in card and '"m": 0.2' in card and "hou2023focal" in card
