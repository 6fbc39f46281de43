"""RankCSE and its released code: golden values, loop twins in value and gradient, masks, closed forms."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from golden import case_of, check
from oracles import cosines, focal_rows, infonce_rows, numerical_gradient

from hf_focalcse.errors import UserError
from hf_focalcse.losses import Pairs, build_loss
from hf_focalcse.objectives.reference import joined


def golden(shared, number):
    inputs, settings, expected = case_of(shared, "rankcse", number)
    z1, z2 = inputs["z1"].requires_grad_(), inputs["z2"].requires_grad_()
    teachers = [inputs[name] for name in ("teacher_a", "teacher_b") if name in inputs]
    weights = [settings["alpha"], 1 - settings["alpha"]][: len(teachers)]
    frozen = joined(teachers, weights)  # (B, D_A + D_B)
    unit = frozen / frozen.norm(dim=1, keepdim=True)
    pairs = Pairs(z1, z2, torch.arange(len(z1)), reference=unit @ unit.T, seed=3)
    return pairs, settings, expected


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("ranking", ["listmle", "listnet"])
def test_golden_values(shared, number, ranking):
    pairs, settings, expected = golden(shared, number)
    check(pairs.reference, expected["teacher_cos"])
    assert pairs.reference.argsort(1, descending=True).tolist() == expected["teacher_order"]
    teacher = {"teacher_temperature": settings["tau3_teacher"]} if ranking == "listnet" else {}
    loss = build_loss(
        "rankcse", temperature=settings["tau1"], ranking=ranking, rank_temperature=settings["tau2_student"],
        consistency_weight=settings["beta"], ranking_weight=settings["gamma"], per_position=False, **teacher,
    )  # fmt: skip
    terms = loss.terms(pairs)
    for name, key in (("contrastive", "info"), ("consistency", "js"), (ranking, ranking)):
        check(terms[name].mean(), expected[key], key)
    value = loss(pairs)
    check(value, expected[f"total_{ranking}"])
    value.backward()
    for name, found in (("grad_z1", pairs.anchors.grad), ("grad_z2", pairs.candidates.grad)):
        check(found, expected[f"{ranking}_grads"][name], name)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("ranking", ["listmle", "listnet"])
def test_golden_values_of_the_released_code(shared, number, ranking):
    pairs, settings, expected = golden(shared, number)
    tau = {"temperature": settings["tau1"], "rank_temperature": settings["tau2_student"]}
    loss = build_loss("rankcse_released", ranking=ranking, **tau)
    terms = loss.terms(pairs)
    check(terms["consistency"].mean(), expected["as_coded"]["consistency"])
    check(terms[ranking].mean(), expected["as_coded"][ranking])
    check(loss(pairs), expected["info"] + sum(expected["as_coded"][name] for name in ("consistency", ranking)))


# ---- loop twins


def softmax(row, kept):
    total = sum(math.exp(row[j]) for j in kept)
    return {j: math.exp(row[j]) / total for j in kept}


def twin_rows(z1, z2, teacher, ranking, base="infonce", tau=0.1, tau_r=0.2, tau_t=0.15, excluded=frozenset()):
    """The three terms as loops, weights 1, 0.7 and 0.4."""
    s, back, rows = cosines(z1, z2), cosines(z2, z1), []
    first = {"infonce": infonce_rows, "focal": lambda *a, **kw: focal_rows(*a[:3], 0.3, **kw)}[base]
    for i, contrastive in enumerate(first(z1, z2, tau, excluded=excluded)):
        kept = [j for j in range(len(z2)) if (i, j) not in excluded or j == i]
        p, q = (softmax([x / tau for x in row], kept) for row in (s[i], back[i]))
        js = sum(
            (p[j] * math.log(2 * p[j] / (p[j] + q[j])) + q[j] * math.log(2 * q[j] / (p[j] + q[j]))) / 2 for j in kept
        )
        if ranking == "listnet":
            others = [j for j in kept if j != i]
            want = softmax([x / tau_t for x in teacher[i]], others)
            have = softmax([x / tau_r for x in s[i]], others)
            rank = -sum(want[j] * math.log(have[j]) for j in others)
        else:
            order = sorted(kept, key=lambda j: -teacher[i][j])
            rank = sum(
                math.log(sum(math.exp(s[i][j] / tau_r) for j in order[k:])) - s[i][order[k]] / tau_r
                for k in range(len(order))
            ) / len(order)
        rows.append(contrastive + 0.7 * js + 0.4 * rank)
    return rows


def problem(seed=0, size=5):
    rng = np.random.default_rng(seed)
    z1, frozen = rng.normal(size=(size, 4)), rng.normal(size=(size, 3))
    return z1, z1 + 0.8 * rng.normal(size=(size, 4)), np.array(cosines(frozen, frozen))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("base", ["infonce", "focal"])
@pytest.mark.parametrize("ranking", ["listmle", "listnet"])
def test_value_and_gradient_equal_the_loop(ranking, base, masked):
    z1, z2, teacher = problem()
    excluded = {(0, 3), (3, 0), (1, 4), (4, 1)} if masked else frozenset()
    mask = torch.eye(5, dtype=torch.bool)
    for i, j in excluded:
        mask[i, j] = True
    loss = build_loss(
        "rankcse", temperature=0.1, base=base, ranking=ranking, rank_temperature=0.2, consistency_weight=0.7,
        ranking_weight=0.4, **({"teacher_temperature": 0.15} if ranking == "listnet" else {}),
    )  # fmt: skip
    a, c = (torch.tensor(z, requires_grad=True) for z in (z1, z2))
    pairs = Pairs(a, c, torch.arange(5), mask if masked else None, torch.tensor(teacher))
    rows = loss.rows(pairs)

    def twin(x, y):
        return twin_rows(x, y, teacher, ranking, base, excluded=excluded)

    np.testing.assert_allclose(rows.detach(), twin(z1, z2), atol=1e-10)
    rows.mean().backward()
    np.testing.assert_allclose(a.grad, numerical_gradient(lambda z: np.mean(twin(z, z2)), z1), atol=2e-6)
    np.testing.assert_allclose(c.grad, numerical_gradient(lambda z: np.mean(twin(z1, z)), z2), atol=2e-6)
    order = [2, 0, 1, 4, 3]  # candidates in another order: the same rows
    back = np.argsort(order)
    shuffled = Pairs(a, c[back], torch.tensor(order), mask[:, back] if masked else None, pairs.reference[:, back])
    torch.testing.assert_close(loss.rows(shuffled), rows)


def test_closed_forms():
    n = 64
    same = torch.ones(n, 3, dtype=torch.float64)
    pairs = Pairs(same, same, torch.arange(n), reference=torch.eye(n))
    for ranking, expected in (("listnet", math.log(n - 1)), ("listmle", math.lgamma(n + 1) / n)):
        terms = build_loss("rankcse", ranking=ranking).terms(pairs)
        assert terms["contrastive"].mean().item() == pytest.approx(math.log(n))
        assert terms["consistency"].abs().max() < 1e-12 and terms[ranking].mean().item() == pytest.approx(expected)
    whole = build_loss("rankcse", per_position=False).terms(pairs)
    assert whole["listmle"].mean().item() == pytest.approx(math.lgamma(n + 1))
    eye = torch.eye(n, dtype=torch.float64)  # the views see the others opposed: far apart, and no more than ln 2
    far = Pairs(eye, eye.roll(1, 0), torch.arange(n), reference=torch.eye(n))
    assert 0.69 < build_loss("rankcse", temperature=0.01).terms(far)["consistency"].max().item() <= math.log(2)


def test_a_better_order_costs_less():
    z1, z2, _ = problem(size=6)
    own = torch.tensor(cosines(z1, z2))
    for name in ("rankcse", "rankcse_released"):
        for ranking in ("listmle", "listnet"):
            loss = build_loss(name, ranking=ranking)
            right, wrong = (
                Pairs(torch.tensor(z1), torch.tensor(z2), torch.arange(6), reference=of) for of in (own, -own)
            )
            assert loss(right) < loss(wrong)


def test_the_released_code_breaks_ties_by_the_seed():
    z1, z2, teacher = problem()
    teacher[:, :] = np.round(teacher)
    pairs = Pairs(torch.tensor(z1), torch.tensor(z2), torch.arange(5), reference=torch.tensor(teacher), seed=1)
    loss = build_loss("rankcse_released")
    values = [loss(dataclasses.replace(pairs, seed=seed)).item() for seed in (1, 1, 2, 3, 4)]
    assert values[0] == values[1] and len(set(values)) > 1


def test_terms_are_logged():
    z1, z2, teacher = problem()
    pairs = Pairs(torch.tensor(z1), torch.tensor(z2), torch.arange(5), reference=torch.tensor(teacher))
    said = build_loss("rankcse").diagnostics(pairs)
    assert {"contrastive_term", "consistency_term", "listmle_term", "positive_cosine_mean"} <= said.keys()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ranking": "listml"}, "ranking is 'listml'.*listmle, listnet"),
        ({"m": 0.3}, "m is 0.3, but base infonce has no margin"),
        ({"teacher_temperature": 0.1}, "teacher_temperature is 0.1, but listmle uses the order"),
        ({"rank_temperature": 0}, "rank_temperature is 0; it must be a number above 0"),
        ({"ranking_weight": -1}, "ranking_weight is -1; it must be a number of at least 0"),
    ],
)
def test_refuses_settings_that_would_do_nothing(settings, said):
    with pytest.raises(UserError, match=said):
        build_loss("rankcse", **settings)
    with pytest.raises(UserError, match="rankcse compares with a frozen encoder .*uncased$"):
        build_loss("rankcse")(Pairs(torch.eye(3), torch.eye(3), torch.arange(3)))
