"""Alarms: one of each kind with its first and last step, each raised by a run that deserves it, in log and record."""

import numpy as np
import pytest
import torch
from tiny import record_mean, save_tiny
from tiny_training import make_trainer
from transformers.utils import logging

from hf_focalcse.encoder.loading import load_model
from hf_focalcse.losses import build_loss
from hf_focalcse.training.alarms import PUBLISHED, SETTLED, Alarms, far_settings
from hf_focalcse.training.finish import make_record
from hf_focalcse.training.watching import WATCHED

HEALTHY = {"loss": 1.0, "grad_norm": 1.0, "negative_cosine_mean": 0.3, "negatives_per_anchor_mean": 63}
HEALTHY |= {"loss_if_perfect": 0.0, "loss_if_untrained": 4.16, "loss_if_collapsed": 10.14}


@pytest.fixture(autouse=True)
def heard(caplog):
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()


def small(folder, **arguments):
    """A trainer of an encoder whose vectors differ."""
    model = load_model(str(save_tiny(folder / "base", initializer_range=0.4)), "cls", dropout=0.1)
    return make_trainer(folder, model=model, **arguments)


def alarms_of(trainer):
    trainer.train()
    return trainer.alarms


def raised(*changes, steps=1000, begin=SETTLED):
    """Alarms of log lines, ten steps apart, that differ from a healthy one."""
    alarms = Alarms()
    for number, change in enumerate(changes):
        alarms.watch(HEALTHY | change, begin + 10 * number, steps)
    return alarms


def test_a_healthy_run_raises_none(tmp_path):
    assert alarms_of(small(tmp_path, max_steps=8, learning_rate=1e-3)) == []
    assert raised({}, {}, {"loss": 4.2}, {}, {"grad_norm": float("inf")}, {}) == []


def test_one_alarm_of_a_kind_with_its_steps_whatever_came_between(caplog):
    alarms = raised(*[{"negative_cosine_mean": 0.99}] * 5, {}, *[{"negative_cosine_mean": 0.99}] * 24)
    (one,) = alarms
    assert one.startswith("collapse: the mean cosine of different sentences is 0.990")
    assert one.endswith(f"(steps {SETTLED + 10} to {SETTLED + 290})") and caplog.text.count("ALARM") == 1
    again = Alarms()
    again.add("resumed from another run")
    again.restore(alarms.kept())
    assert again == [one, "resumed from another run"]


@pytest.mark.parametrize(
    ("lines", "change", "said"),
    [
        (
            2,
            {"loss": 4.12},
            "nothing is learnt: the loss is 4.120, and an encoder that tells no sentences apart has 4.16",
        ),
        (2, {"loss": 9.9, "negative_cosine_mean": 0.95}, "collapse: "),
        (2, {"loss": 9.9}, "nothing is learnt: the loss is 9.900"),
        (2, {"loss": 1e-7}, "nothing is left to learn: the loss is 1.0e-07"),
        (2, {"grad_norm": float("inf")}, "the norm of the gradient is inf"),
        (2, {"grad_norm": 0.0}, "the norm of the gradient is 0"),
        (1, {"negatives_per_anchor_mean": 0}, "no sentence of the batch has a negative"),
        (1, {"reference_alike_share": 0.95}, "the reference finds 95% of the negatives alike"),
        (1, {"reference_cosine_std": 0.001}, "the reference tells no sentences apart"),
        (10, {"reference_alike_share": 0.0}, "the reference found no two sentences alike"),
    ],
)
def test_both_ends_of_what_a_log_line_shows(lines, change, said):
    at = 300  # a loss may stay where it began for a fifth of the run
    assert not any(said in one for one in raised(*[change] * (lines - 1), begin=at))
    assert sum(said in one for one in raised(*[change] * (lines + 3), begin=at)) == 1


def test_a_small_loss_from_which_an_encoder_still_learns_raises_none():
    """Lines of the quickstart's log, which raises STS-B dev by a third of a point."""
    lines = [{"loss": loss, "grad_norm": 3e-4} for loss in (4.5e-5, 2.5e-5, 2.0e-5, 1.5e-5, 1.4e-5)]
    assert raised(*lines, steps=40, begin=1) == []


def test_a_loss_has_a_fifth_of_the_run_to_settle():
    assert raised(*[{"loss": 4.16}] * 5, begin=100) == [] != raised(*[{"loss": 4.16}] * 5, begin=200)


def test_what_got_no_gradient_is_named_in_log_and_record(tmp_path, caplog):
    trainer = small(tmp_path, max_steps=WATCHED + 2)
    trainer.model.unused = torch.nn.Linear(2, 2, bias=False)
    (said,) = alarms_of(trainer)
    assert "1 of the parameters that are trained got no gradient in the first steps: unused.weight" in said
    assert said.endswith(f"(steps 1 to {WATCHED})") and f"ALARM: {said}" in caplog.text
    assert make_record(trainer).alarms == [said]


def test_what_did_not_move_is_named(tmp_path):
    trainer = small(tmp_path, max_steps=3)
    first = next(p for p in trainer.model.parameters() if p.ndim == 2)
    name = next(name for name, p in trainer.model.named_parameters() if p is first)
    trainer.create_optimizer()
    for group in trainer.optimizer.param_groups:
        group["params"] = [p for p in group["params"] if p is not first]
    (said,) = alarms_of(trainer)
    assert f"1 of the parameters that are trained did not move in the first steps: {name};" in said
    assert said.endswith("(steps 1 to 3)")


def test_a_rate_that_changes_nothing(tmp_path):
    said = alarms_of(small(tmp_path, max_steps=3, learning_rate=1e-30))
    assert "learning_rate is 1e-30, far from anything published (5e-6 to 5e-5" in said[0]
    assert "did not move in the first steps" in said[1]


def test_no_gradient_at_all_has_an_alarm_of_its_own(tmp_path):
    said = alarms_of(small(tmp_path, texts=[{"text": "a man"}] * 32, max_steps=3))
    (one,) = [alarm for alarm in said if "gradient in the first steps" in alarm]
    assert one.startswith("no parameter got a gradient in the first steps: the loss is at an end of its range")


def test_a_padding_that_is_a_word_is_said(tmp_path):
    model = load_model(str(save_tiny(tmp_path / "base", initializer_range=0.4)), "cls", dropout=0.1)
    assert alarms_of(make_trainer(tmp_path, model=model, max_steps=1)) == []
    model.get_input_embeddings().padding_idx = number = model.tokenizer.convert_tokens_to_ids("man")
    (said,) = alarms_of(make_trainer(tmp_path, model=model, max_steps=1))
    assert said.startswith(
        f"config.json of the encoder pads with token {number}, 'man', whose embedding gets no gradient"
    )


def test_a_reference_that_finds_everything_alike(tmp_path):
    folder = record_mean(save_tiny(tmp_path / "reference"))
    reference = load_model(str(folder))
    loss = build_loss("dclr", phi=0.01)
    with torch.no_grad():
        for weights in reference.parameters():
            weights.zero_()
        reference.encoder.embeddings.LayerNorm.bias.fill_(1.0)
        for layer in reference.encoder.encoder.layer:
            layer.output.LayerNorm.bias.fill_(1.0)
    said = alarms_of(small(tmp_path, loss=loss, reference=reference, max_steps=2))
    assert any("the reference finds 100% of the negatives alike" in one for one in said)


def test_vectors_that_are_all_alike(tmp_path):
    trainer = small(tmp_path, max_steps=3)
    trainer.train_objective.diagnostics, of = (
        (lambda pairs: of(pairs) | {"negative_cosine_mean": 0.999}),
        (trainer.train_objective.diagnostics),
    )
    (said,) = alarms_of(trainer)
    assert said.startswith("collapse: ") and said.endswith("(steps 2 to 3)")


def test_text_that_the_tokenizer_cannot_read(tmp_path):
    texts = [{"text": chr(0x1F600 + i)} for i in range(32)]
    said = alarms_of(small(tmp_path, texts=texts, max_steps=2))
    assert said[0].startswith("training text: the tokenizer does not know 32 of 32 tokens (100.0%)")
    assert any("no sentence of the batch has a negative" in one for one in said)  # equal tokens are masked


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_far_from_anything_published(name):
    least, most, published = PUBLISHED[name]
    for value in (least / 10 - 1e-9, most * 10):
        ((kind, said),) = far_settings({name: value})
        assert name in kind and published in said
    assert [*far_settings({name: least}), *far_settings({name: most})] == []


def test_watching_changes_no_weights(tmp_path):
    def trained(folder, watch):
        trainer = small(folder, max_steps=3, learning_rate=1e-3)
        if not watch:
            trainer.callback_handler.callbacks = [
                one for one in trainer.callback_handler.callbacks if type(one).__name__ != "FirstSteps"
            ]
        trainer.train()
        return [p.detach().numpy() for p in trainer.model.parameters()]

    one, other = trained(tmp_path / "one", True), trained(tmp_path / "other", False)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
