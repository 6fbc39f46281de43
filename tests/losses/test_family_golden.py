"""The golden file of the family: what of it other tests read, what losses alone show, and what is not built yet."""

import pytest
import torch
from golden import all_cases, case_of, check

from hf_focalcse import build_loss
from hf_focalcse.losses import Pairs
from hf_focalcse.losses.base import cosine
from hf_focalcse.objectives.pairs import make_pairs

READ = {
    "rankcse": "losses/test_rankcse.py",
    "esimcse": "objectives/test_momentum_queue.py and data/test_repeat.py",
    "supervised_simcse": "objectives/test_supervised.py",
    "diffcse": "objectives/test_diffcse.py",
    "tsdae": "objectives/test_tsdae.py",
    "mlm": "objectives/test_mlm.py",
    "cocktail": "cli/test_merge_command.py, but for weights from losses on examples, which nothing here takes",
    "gsinfonce": "below: the noise has no effect that a scale could change, so it is no option",
    "promptbert": "objectives/test_prompt.py",
    "sncse": "below: its margin needs a parser that negates sentences, so it is no option",
    "cotbert": "below: its denominator has pairs that belong to no anchor, so it is no option",
    "prompteol": "below: the loss alone; prompts, last tokens and adapters belong to the encoder",
}


def test_every_method_is_read(shared):
    found = {case["method"] for case in all_cases(shared)}
    assert found == READ.keys() and len(all_cases(shared)) == 36


@pytest.mark.parametrize("number", range(3))
def test_gaussian_negatives_are_a_constant_under_cosine(shared, number):
    inputs, settings, expected = case_of(shared, "gsinfonce", number)
    z1, z2 = inputs["z1"].requires_grad_(), inputs["z2"].requires_grad_()
    loss = build_loss("infonce", temperature=settings["tau"])

    def value(noise):
        return Pairs(z1, torch.cat([z2, noise]), torch.arange(len(z1)))

    check(loss.rows(value(inputs["noise"])), expected["rows"])
    check(loss(value(inputs["noise"] * 7)), expected["loss_noise_times_7"])
    check(loss(value(inputs["noise"][:0])), expected["loss_without_noise"])
    found = loss(value(inputs["noise"]))
    check(found, expected["loss"])
    found.backward()
    check(z1.grad, expected["grad_z1"])
    check(z2.grad, expected["grad_z2"])


@pytest.mark.parametrize("number", range(3))
def test_the_loss_of_prompts_is_that_of_pairs_with_hard_negatives(shared, number):
    inputs, settings, expected = case_of(shared, "prompteol", number)
    parts = [torch.tensor(expected["anchor"], dtype=torch.float64), inputs["positive"], inputs["negative"]]
    views = torch.stack(parts, 1).requires_grad_()
    loss = build_loss("infonce", temperature=settings["tau"])
    check(loss.rows(make_pairs(views)), expected["rows"])
    value = loss(make_pairs(views))
    check(value, expected["loss"])
    value.backward()
    for view, name in enumerate(("anchor", "positive", "negative")):
        check(views.grad[:, view], expected[f"grad_{name}"])


def views_of(inputs):
    return [inputs[name].requires_grad_() for name in ("z1", "z2", "z3")]


def check_gradients(value, views, expected):
    value.backward()
    for number, view in enumerate(views, 1):
        check(view.grad, expected[f"grad_z{number}"])


@pytest.mark.parametrize("number", range(3))
def test_the_contrastive_term_of_sncse_is_infonce(shared, number):
    inputs, settings, expected = case_of(shared, "sncse", number)
    z1, z2, z3 = views = views_of(inputs)
    info = build_loss("infonce", temperature=settings["tau"])(Pairs(z1, z2, torch.arange(len(z1))))
    check(info, expected["info"])
    difference = cosine(z1, z3).diag() - cosine(z1, z2).diag()
    check(difference, expected["difference"])
    margin = (difference + settings["alpha"]).relu() + (-difference - settings["beta"]).relu()
    check(margin, expected["margin_rows"])
    value = info + settings["lambda_"] * margin.mean()
    check(value, expected["loss"])
    check_gradients(value, views, expected)


@pytest.mark.parametrize("number", range(3))
def test_the_loss_of_cotbert_has_the_positives_among_its_anchors(shared, number):
    """Its rows from those of pairs with hard negatives, and the cosines of positives with these."""
    inputs, settings, expected = case_of(shared, "cotbert", number)
    z1, z2, z3 = views = views_of(inputs)
    pairs = make_pairs(torch.stack(views, 1))
    rows = build_loss("infonce", temperature=settings["tau"]).rows(pairs)
    own = cosine(z1, z2).diag() / settings["tau"]
    rows = torch.logaddexp(rows + own, (cosine(z2, z3) / settings["tau"]).logsumexp(1)) - own
    check(rows, expected["rows"])
    check(rows.mean(), expected["loss"])
    check_gradients(rows.mean(), views, expected)
