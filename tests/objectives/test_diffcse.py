"""DiffCSE: the golden values, the discriminator against a plain computation, what is trained, and what is refused."""

import pytest
import torch
from family import BUILD, objective_trainer, save_generator
from golden import case_of, check
from safetensors.torch import load_file
from tiny import SENTENCES, save_tiny
from torch import nn

from hf_focalcse import build_loss, load_model
from hf_focalcse.data.views import Views
from hf_focalcse.errors import UserError
from hf_focalcse.objectives.diffcse import DiffCSE, replaced, rtd_sum
from hf_focalcse.objectives.pairs import make_pairs
from hf_focalcse.objectives.projector import BatchNorm, Projector


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "diffcse", number)
    ids, mask = inputs["token_ids"], inputs["attention_mask"]
    guessed, labels = replaced(ids, mask, inputs["generator_argmax"], pad_id=0)
    assert guessed.tolist() == expected["discriminator_ids"] and labels.tolist() == expected["labels"]
    logits = inputs["rtd_logits"].requires_grad_()
    real = rtd_sum(logits, labels, mask) / mask.sum()
    check(real, expected["rtd_real_tokens"])
    every = rtd_sum(logits, labels, torch.ones_like(mask)) / mask.numel()
    check(every, expected["rtd_all_positions"])
    info = build_loss("infonce", temperature=settings["tau"])(make_pairs(torch.stack([inputs["z1"], inputs["z2"]], 1)))
    check(info, expected["info"])
    check(info + settings["lambda_"] * real, expected["loss_real_tokens"])
    check(info + settings["lambda_"] * every, expected["loss_all_positions"])
    real.backward()
    check(logits.grad, expected["grad_logits"])

    projector = Projector(inputs["projector_x"].shape[1]).double()
    first, norm, _, second, last = projector
    with torch.no_grad():
        first.weight.copy_(inputs["projector_w1"])
        second.weight.copy_(inputs["projector_w2"])
        norm.weight.copy_(inputs["projector_bn1_weight"])
        norm.bias.copy_(inputs["projector_bn1_bias"])
    check(projector(inputs["projector_x"]), expected["projector_y"])
    for name, module in (("bn1", norm), ("bn2", last)):
        check(module.running_mean, expected[f"{name}_running_mean"])
        check(module.running_var, expected[f"{name}_running_var"])


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_that_of_torch(affine):
    own, theirs = BatchNorm(5, affine).double(), nn.BatchNorm1d(5, affine=affine).double()
    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for mode in (True, False):
        own.train(mode), theirs.train(mode)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.testing.assert_close(own(a), theirs(b))
        own(a).pow(3).sum().backward(), theirs(b).pow(3).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    torch.testing.assert_close(own.running_var, theirs.running_var)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("diffcse") / "base", initializer_range=0.2)
    save_generator(folder)
    return str(folder)


def step(base, **settings):
    """The objective with its encoder in eval mode, and a batch."""
    model = load_model(base, "cls", default_pooler=True)
    torch.manual_seed(0)
    objective = DiffCSE(build_loss("focal"), generator_model=f"{base}-generator", **settings)
    objective.attach(model)
    model.eval(), objective.eval()
    batch = Views(model.tokenizer, 16)([{"text": text} for text in SENTENCES]) | {"seed": 5}
    return model, objective, batch


@pytest.mark.parametrize("padding", [False, True])
def test_the_discriminator_equals_a_plain_computation(base, padding):
    model, objective, batch = step(base, rtd_weight=0.7, rtd_padding=padding)
    value, pairs = objective.loss(model, batch)
    ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
    guessed, labels = replaced(ids, mask, objective._guess(batch), 0)
    assert 0 < labels.sum() < mask.sum()
    vectors = objective.project(model(batch["input_ids"], batch["attention_mask"])).flatten(0, 1)
    network, total, count = objective.discriminator, 0.0, 0
    for row in range(len(ids)):
        states = network.embeddings(input_ids=guessed[row : row + 1])
        states = torch.cat([vectors[row].view(1, 1, -1), states[:, 1:]], 1)
        hidden = torch.zeros(1, 1, 1, len(mask[row])).masked_fill(mask[row] == 0, -torch.inf)
        logits = objective.tell(network.encoder(states, attention_mask=hidden).last_hidden_state)[0]
        for place in range(len(mask[row])):
            if padding or mask[row, place]:
                total, count = total - logits[place].log_softmax(0)[labels[row, place]], count + 1
    plain = (
        objective.criterion(make_pairs(vectors.view(len(ids) // 2, 2, -1), batch["text_ids"])) + 0.7 * total / count
    )
    torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-5)
    trained = {n: p for part in (model, objective) for n, p in part.named_parameters() if p.requires_grad}
    assert any(n.startswith("discriminator.") for n in trained) and "embeddings" in " ".join(trained)
    gradients = [torch.autograd.grad(of, trained.values(), allow_unused=True) for of in (value, plain)]
    for name, found, expected in zip(trained, *gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5, msg=name)
    said = objective.diagnostics(pairs)
    assert said["rtd_loss"] == pytest.approx((total / count).item(), rel=1e-4)
    assert 0 <= said["rtd_accuracy_kept"] <= 1 >= said["rtd_accuracy_replaced"] >= 0


def test_the_gradient_reaches_the_encoder_and_never_the_generator(base):
    model, objective, batch = step(base)
    embeddings = objective.project(model(batch["input_ids"], batch["attention_mask"]))
    objective.further(batch, embeddings).backward()
    assert model.encoder.embeddings.word_embeddings.weight.grad.any()
    assert not [p for p in objective.generator.parameters() if p.requires_grad or p.grad is not None]


def test_one_step_moves_what_is_trained_and_nothing_else(base, tmp_path):
    trainer = objective_trainer(base, tmp_path, "diffcse", max_steps=1)
    frozen = {name: p.clone() for name, p in trainer.objective.generator.named_parameters()}
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    still = [name for name, p in trainer.model.named_parameters() if p.requires_grad and p.equal(before[name])]
    assert not [name for name in still if "key.bias" not in name]
    assert [name for name, p in trainer.model.named_parameters() if not p.requires_grad] == [
        name for name in before if "pooler." in name
    ]
    assert all(p.equal(frozen[name]) for name, p in trainer.objective.generator.named_parameters())
    trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in trainer.objective.generator.parameters()}
    trainer.save_whole(tmp_path / "saved")
    names = {name.removeprefix("bert.") for name in load_file(tmp_path / "saved/model.safetensors")}
    assert names == set(load_file(f"{base}/model.safetensors"))
    assert load_model(str(tmp_path / "saved")).pooler_name == "cls"


def test_chunks_give_the_same_gradient(base, tmp_path):
    def gradients(chunk):
        trainer = objective_trainer(base, tmp_path, "diffcse", dropout=0.0, double=True, max_steps=1, optim="sgd",
                                    learning_rate=1.0, max_grad_norm=0.0, per_device_train_batch_size=8)  # fmt: skip
        trainer.model.chunk_size = chunk
        before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.train()
        return {name: before[name] - p.detach() for name, p in trainer.model.named_parameters()}

    one, chunked = gradients(None), gradients(3)
    for name, value in one.items():
        torch.testing.assert_close(chunked[name], value, rtol=0, atol=1e-12, msg=name)


def test_what_does_not_go_is_refused(base, tmp_path):
    for settings, said in (
        ({}, "needs a frozen masked language model with the encoder's vocabulary: name one with --generator_model"),
        ({"generator_model": "x", "mask_probability": 0.0}, "mask_probability is 0.0"),
        ({"generator_model": "x", "rtd_weight": 0.0}, "rtd_weight is 0.0"),
    ):
        with pytest.raises(UserError, match=said):
            DiffCSE(build_loss("focal"), **settings)
    with pytest.raises(UserError, match="takes sentences and a loss without a reference"):
        DiffCSE(build_loss("dclr"), reference=load_model(base, "mean"), generator_model="x")
    model = load_model(base, "cls", default_pooler=True)

    def attach(generator, of=model):
        DiffCSE(build_loss("focal"), generator_model=str(generator)).attach(of)

    with pytest.raises(UserError, match="could not be loaded as a masked language model"):
        attach(tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no head that guesses masked words"):
        attach(save_tiny(tmp_path / "headless"))
    other = save_tiny(tmp_path / "other")
    save_generator(other)
    tokens = load_model(str(other), "cls", default_pooler=True)
    tokens.tokenizer.add_tokens(["zebra"])
    with pytest.raises(UserError, match="has another vocabulary than the encoder"):
        attach(f"{other}-generator", tokens)
    assert {"diffcse", "mlm", "momentum_queue"} <= BUILD.keys()
