"""Losses: the public implementations' numbers, loop twins, closed forms, and the contract over the registry."""

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles import focal_rows, infonce_rows, numerical_gradient

from hf_focalcse.errors import UserError
from hf_focalcse.losses import LOSSES, Pairs, build_loss

TARGETS = torch.arange(6)


def pairs_of(z1, z2, **kwargs) -> Pairs:
    """With a reference that finds no two sentences alike, for the losses that need one."""
    reference = torch.eye(len(z1), len(z2))
    return Pairs(
        torch.as_tensor(z1), torch.as_tensor(z2), torch.arange(len(z1)), reference=reference, seed=0, **kwargs
    )


def random_views(rows=6, dimensions=5, seed=0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z1 = rng.normal(size=(rows, dimensions))
    return z1, z1 + 0.8 * rng.normal(size=(rows, dimensions))


@cache
def golden_cases(folder: Path) -> list[dict]:
    return json.loads((folder / "golden" / "contrastive.json").read_text())


@pytest.mark.parametrize("index", range(60))
def test_equals_the_public_implementations(shared, index):
    case = golden_cases(shared)[index]
    z1 = torch.tensor(case["z1"], dtype=torch.float64, requires_grad=True)
    z2 = torch.tensor(case["z2"], dtype=torch.float64, requires_grad=True)
    settings = {"m": case["m"]} if case["loss_name"] == "focal" else {}
    loss = build_loss(case["loss_name"], temperature=case["temperature"], **settings)
    pairs = pairs_of(z1, z2)
    value = loss(pairs)
    value.backward()
    near = {"rtol": 0, "atol": 1e-9}
    torch.testing.assert_close(value.item(), case["loss"], **near)
    torch.testing.assert_close(loss.rows(pairs).detach(), torch.tensor(case["rows"], dtype=torch.float64), **near)
    torch.testing.assert_close(z1.grad, torch.tensor(case["grad_z1"], dtype=torch.float64), **near)
    torch.testing.assert_close(z2.grad, torch.tensor(case["grad_z2"], dtype=torch.float64), **near)


def test_the_golden_file_is_read_whole(shared):
    assert len(golden_cases(shared)) == 60


TWINS = {
    "infonce": ({}, lambda z1, z2, **kw: infonce_rows(z1, z2, 0.05, **kw)),
    "focal": ({}, lambda z1, z2, **kw: focal_rows(z1, z2, 0.05, 0.3, **kw)),
    "focal, negatives clamped": (
        {"clamp_negatives": True},
        lambda z1, z2, **kw: focal_rows(z1, z2, 0.05, 0.3, clamp_negatives=True, **kw),
    ),
    "focal, positives clamped": (
        {"clamp_positives": True},
        lambda z1, z2, **kw: focal_rows(z1, z2, 0.05, 0.3, clamp_positives=True, **kw),
    ),
}


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("seed", [0, 1])
def test_value_and_gradient_equal_the_loop(name, seed):
    settings, twin = TWINS[name]
    loss = build_loss(name.split(",")[0], **settings)
    z1, z2 = random_views(seed=seed)
    z1[0] = -z2[0]  # an opposed positive and negative cosines below -m/2 occur
    a, c = (torch.tensor(z, requires_grad=True) for z in (z1, z2))
    rows = loss.rows(pairs_of(a, c))
    np.testing.assert_allclose(rows.detach(), twin(z1, z2), atol=1e-10)
    rows.mean().backward()
    np.testing.assert_allclose(a.grad, numerical_gradient(lambda z: np.mean(twin(z, z2)), z1), atol=2e-6)
    np.testing.assert_allclose(c.grad, numerical_gradient(lambda z: np.mean(twin(z1, z)), z2), atol=2e-6)


def test_focal_derivative_is_two_s_plus_m_not_equation_4():
    torch.manual_seed(0)
    cosines = (torch.rand(5, 5, dtype=torch.float64) * 2 - 1).requires_grad_()
    loss = build_loss("focal", temperature=0.05, m=0.3)
    eye = torch.eye(5, dtype=torch.bool)
    logits = loss.logits(cosines, eye)
    torch.nn.functional.cross_entropy(logits, torch.arange(5), reduction="sum").backward()
    probability = logits.softmax(1).detach()
    expected = probability * (2 * cosines.detach() + 0.3) / 0.05
    expected[eye] = (2 / 0.05 * (probability - 1) * cosines.detach())[eye]
    torch.testing.assert_close(cosines.grad, expected)
    printed = 2 / 0.05 * probability * (cosines.detach() + 0.3)
    assert (cosines.grad - printed)[~eye].abs().max() > 0.1


def test_detached_weights_halve_the_positive_gradient():
    z1, z2 = random_views()

    def gradient(**settings):
        cosines = torch.tensor(np.full((2, 2), 0.5), requires_grad=True)
        build_loss("focal", **settings).logits(cosines, torch.eye(2, dtype=torch.bool)).sum().backward()
        return cosines.grad

    free, detached = gradient(), gradient(detach_weights=True)
    assert free[0, 0].item() == pytest.approx(2 * 0.5 / 0.05)
    assert detached[0, 0].item() == pytest.approx(0.5 / 0.05)
    assert free[0, 1].item() == pytest.approx((2 * 0.5 + 0.3) / 0.05)
    assert detached[0, 1].item() == pytest.approx((0.5 + 0.3) / 0.05)
    a, b = (build_loss("focal", detach_weights=d)(pairs_of(z1, z2)).item() for d in (False, True))
    assert a == b  # the value does not change


def test_symmetric_is_the_mean_of_both_directions():
    z1, z2 = random_views()
    both = build_loss("focal", symmetric=True).rows(pairs_of(z1, z2))
    np.testing.assert_allclose(
        both, (np.array(focal_rows(z1, z2, 0.05, 0.3)) + np.array(focal_rows(z2, z1, 0.05, 0.3))) / 2, atol=1e-10
    )
    order = [2, 0, 1, 5, 3, 4]  # candidates in another order: the same rows
    shuffled = Pairs(torch.tensor(z1), torch.tensor(z2[np.argsort(order)]), torch.tensor(order))
    torch.testing.assert_close(build_loss("focal", symmetric=True).rows(shuffled), both)
    with pytest.raises(UserError, match="as many candidates as anchors"):
        build_loss("focal", symmetric=True)(Pairs(torch.tensor(z1[:3]), torch.tensor(z2), torch.arange(3)))


@pytest.mark.parametrize(
    ("name", "rows", "temperature", "expected"),
    [
        ("infonce", 64, 0.05, math.log(64)),
        ("focal", 64, 0.05, 10.14),
        ("focal", 512, 0.05, 12.24),
        ("focal", 64, 0.07, math.log(1 + 63 * math.exp(0.3 / 0.07))),
    ],
)
def test_collapse_has_its_closed_form(name, rows, temperature, expected):
    ones = torch.ones(rows, 3, dtype=torch.float64)
    assert build_loss(name, temperature=temperature)(pairs_of(ones, ones)).item() == pytest.approx(expected, abs=5e-3)


def test_focal_without_margin_and_orthogonal_negatives_is_ln_of_the_softmax():
    eye = torch.eye(8, dtype=torch.float64)
    expected = math.log(1 + 7 * math.exp(-1 / 0.05))
    for name, settings in (("focal", {"m": 0.0}), ("infonce", {})):
        assert build_loss(name, **settings)(pairs_of(eye, eye)).item() == pytest.approx(expected)


# ---- the contract, for every registered loss


@pytest.fixture(params=sorted(LOSSES))
def loss(request):
    return build_loss(request.param)


def test_config_builds_the_same_loss(loss):
    assert build_loss(**loss.config).config == loss.config


def test_describes_itself(loss):
    assert loss.formula and loss.paper.startswith("https://") and loss.citation.startswith("@")


def test_does_not_depend_on_the_length_of_vectors(loss):
    z1, z2 = random_views()
    torch.testing.assert_close(loss(pairs_of(z1, z2)), loss(pairs_of(z1 * 7, z2 * 0.01)))


def test_gradient_with_more_candidates_than_anchors(loss):
    z1, z2 = (torch.tensor(z, requires_grad=True) for z in random_views(rows=9))
    unlike = torch.zeros(3, 9)
    targets = torch.tensor([4, 1, 8])
    assert torch.autograd.gradcheck(lambda a, c: loss(Pairs(a, c, targets, reference=unlike, seed=0)), (z1[:3], z2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zero_vector_gives_no_nan_and_no_gradient(loss, dtype):
    z1, z2 = (torch.tensor(z, dtype=dtype) for z in random_views())
    z1[2], z2[3] = 0, 0
    z1.requires_grad_(), z2.requires_grad_()
    value = loss(pairs_of(z1, z2))
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(z1.grad).all() and torch.isfinite(z2.grad).all()
    assert not z1.grad[2].any() and not z2.grad[3].any()


def test_is_computed_in_float32_under_autocast(loss):
    z1, z2 = (torch.tensor(z, dtype=torch.float32) for z in random_views(rows=32, dimensions=64))
    plain = loss.rows(pairs_of(z1, z2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = loss.rows(pairs_of(z1, z2))
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)


def test_excluded_candidates_leave_the_denominator(loss):
    z1, z2 = random_views()
    excluded = torch.zeros(6, 6, dtype=torch.bool)
    excluded[0, 3] = excluded[3, 0] = True
    excluded |= torch.eye(6, dtype=torch.bool)  # as equal texts give it: the positive stays in all the same
    _, twin = TWINS.get(loss.name, (None, None))
    if twin is None:
        pytest.skip(f"{loss.name} has no loop twin here")
    expected = twin(z1, z2, excluded={(0, 3), (3, 0)})
    np.testing.assert_allclose(loss.rows(pairs_of(z1, z2, excluded=excluded)), expected, atol=1e-10)
    assert not np.allclose(expected, twin(z1, z2))


def test_a_duplicate_costs_six_unless_it_is_excluded():
    twice = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])
    loss = build_loss("focal")
    assert loss.rows(pairs_of(twice, twice))[0].item() == pytest.approx(6.002, abs=2e-3)
    excluded = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    assert loss.rows(pairs_of(twice, twice, excluded=excluded))[0].item() < 1e-6


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("focl", {}, "no loss 'focl', did you mean 'focal'"),
        ("focal", {"temprature": 1}, "no setting 'temprature', did you mean 'temperature'"),
        ("infonce", {"m": 0.3}, "no setting 'm'"),
        ("focal", {"temperature": 0}, "temperature is 0; it must be a number above 0"),
        ("infonce", {"temperature": float("nan")}, "temperature is nan"),
        ("focal", {"m": -0.1}, "m is -0.1"),
    ],
)
def test_refuses_with_the_remedy(name, settings, message):
    with pytest.raises(UserError, match=message):
        build_loss(name, **settings)
