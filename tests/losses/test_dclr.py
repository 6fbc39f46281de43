"""DCLR and its released code: loop twins in value and gradient, closed forms, each variant, each departure."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from oracles import (
    ascended,
    cosines,
    dclr_rows,
    divergence_rows,
    infonce_rows,
    non_uniformity,
    numerical_gradient,
    released_objective,
    released_rows,
)

from hf_focalcse.errors import UserError
from hf_focalcse.losses import Pairs, build_loss
from hf_focalcse.losses.dclr import ascent_direction, draw_noise
from hf_focalcse.objectives.pairs import make_pairs

B, D, SEED = 5, 6, 11


def problem(seed=0, reference_dimensions=D):
    """Two views, a reference that finds (0, 2), (2, 0) and (1, 4), (4, 1) alike, and the noise the seed stands for."""
    rng = np.random.default_rng(seed)
    z1 = rng.normal(size=(B, D))
    z2 = z1 + 0.8 * rng.normal(size=(B, D))
    frozen = rng.normal(size=(B, reference_dimensions))
    frozen[2], frozen[4] = frozen[0] * 2 + 0.1 * rng.normal(size=reference_dimensions), frozen[1]
    noise = torch.randn(2 * B, D, generator=torch.Generator().manual_seed(SEED)).double().numpy()
    return z1, z2, frozen, noise


def pairs_of(z1, z2, frozen=None, **kwargs):
    views = torch.stack([torch.as_tensor(z1), torch.as_tensor(z2)], 1)
    pairs = make_pairs(views, reference=None if frozen is None else torch.tensor(frozen))
    return dataclasses.replace(pairs, seed=SEED, **kwargs)


def check(loss, z1, z2, frozen, twin):
    """Rows and both gradients against ``twin(z1, z2)``."""
    a, c = (torch.tensor(z, requires_grad=True) for z in (z1, z2))
    pairs = dataclasses.replace(pairs_of(z1, z2, frozen), anchors=a, candidates=c)
    rows = loss.rows(pairs)
    np.testing.assert_allclose(rows.detach(), twin(z1, z2), rtol=1e-7, atol=1e-8)
    rows.mean().backward()
    np.testing.assert_allclose(a.grad, numerical_gradient(lambda z: np.mean(twin(z, z2)), z1), atol=2e-6)
    np.testing.assert_allclose(c.grad, numerical_gradient(lambda z: np.mean(twin(z1, z)), z2), atol=2e-6)


STEPS = {"noise_ratio": 2.0, "noise_steps": 3, "noise_step_size": 0.05, "phi": 0.9, "tau_u": 0.2, "temperature": 0.1}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("base", ["infonce", "focal"])
@pytest.mark.parametrize("weighting", ["reference", "self", "none", "distillation"])
@pytest.mark.parametrize("noise", ["ascended", "random", "without"])
def test_value_and_gradient_equal_the_loop(seed, base, weighting, noise):
    z1, z2, frozen, start = problem(seed)
    settings = STEPS | {"base": base, "weighting": weighting}
    if weighting == "self":
        settings["phi"] = 0.3  # so that the encoder itself finds some negatives alike, in the batch and in the noise
    if noise == "random":
        settings["noise_steps"] = 0
    if noise == "without":
        settings["noise_ratio"] = 0.0
    moved = ascended(start, settings["noise_steps"], 0.05, lambda n: non_uniformity(z1, z2, n, 0.2))
    moved = moved if settings["noise_ratio"] else np.zeros((0, D))
    scored = {"reference": (cosines(frozen, frozen), cosines(frozen, moved) if len(moved) else None)}
    scored["self"] = (cosines(z1, z2), cosines(z1, moved) if len(moved) else None)
    mine, others = scored.get(weighting, (None, None))
    if weighting == "self":
        assert sum(x >= 0.3 for row in mine for x in row) > B
        assert others is None or any(x >= 0.3 for row in others for x in row)
    m = 0.3 if base == "focal" else None

    def twin(x, y):
        rows = dclr_rows(x, y, moved, 0.1, mine, others, settings["phi"], m)
        if weighting == "distillation":
            rows = [a + b for a, b in zip(rows, divergence_rows(x, y, cosines(frozen, frozen), 0.1), strict=True)]
        return rows

    check(build_loss("dclr", **settings), z1, z2, frozen, twin)


def test_noise_is_weighted_only_where_the_reference_can_judge_it():
    z1, z2, frozen, start = problem()
    frozen[0] = start[3] + 0.01  # the reference's vector of sentence 0 lies beside a noise vector
    loss = build_loss("dclr", noise_ratio=2.0, noise_steps=0)
    assert loss.removed_noise(torch.tensor(start), pairs_of(z1, z2, frozen)).nonzero().tolist() == [[0, 3]]
    check(loss, z1, z2, frozen, lambda x, y: dclr_rows(x, y, start, 0.05, cosines(frozen, frozen),
                                                       cosines(frozen, start), 0.9))  # fmt: skip
    z1, z2, frozen, start = problem(reference_dimensions=4)  # another size: no cosine with the noise
    check(loss, z1, z2, frozen, lambda x, y: dclr_rows(x, y, start, 0.05, cosines(frozen, frozen), None, 0.9))


def test_equal_texts_leave_the_denominator_besides():
    z1, z2, frozen, start = problem()
    excluded = torch.eye(B, dtype=torch.bool)
    excluded[0, 3] = excluded[3, 0] = True
    rows = build_loss("dclr", noise_steps=0, noise_ratio=2.0).rows(pairs_of(z1, z2, frozen, excluded=excluded))
    expected = dclr_rows(z1, z2, start, 0.05, cosines(frozen, frozen), cosines(frozen, start), 0.9,
                         excluded={(0, 3), (3, 0)})  # fmt: skip
    np.testing.assert_allclose(rows, expected, atol=1e-9)


# ---- closed forms


def test_phi_above_1_and_no_noise_is_infonce_and_focal():
    z1, z2, frozen, _ = problem()
    pairs = pairs_of(z1, z2, frozen)
    for base in ("infonce", "focal"):
        loss = build_loss("dclr", base=base, phi=1.01, noise_ratio=0.0)
        torch.testing.assert_close(loss.rows(pairs), build_loss(base).rows(pairs), rtol=0, atol=1e-14)


def test_the_term_of_a_duplicate_is_gone():
    z1, z2, frozen, _ = problem()
    z1[2], z2[2], frozen[2] = z1[0], z2[0], frozen[0]  # one exact duplicate
    rows = build_loss("dclr", noise_ratio=0.0).rows(pairs_of(z1, z2, frozen))
    kept = [0, 1, 3, 4]  # sentence 0 sees the batch as if its duplicate were not there
    plain = infonce_rows(z1[kept], z2[kept], 0.05, excluded={(1, 3), (3, 1)})
    assert rows[0].item() == pytest.approx(plain[0], abs=1e-12)
    assert infonce_rows(z1, z2, 0.05)[0] > plain[0] + 0.5


def test_every_step_of_the_ascent_raises_the_non_uniformity_loss():
    for seed in range(5):
        z1, z2, _, _ = problem(seed)
        pairs = pairs_of(z1, z2)
        loss = build_loss("dclr", weighting="none", noise_ratio=4.0)
        one_step = build_loss("dclr", weighting="none", noise_ratio=4.0, noise_steps=1)
        noise = draw_noise(pairs, 4.0, 1.0)
        assert noise.shape == (20, D)
        height = [non_uniformity(z1, z2, noise.numpy(), 0.05)]
        for _ in range(loss.noise_steps):
            moved = one_step.ascend(noise, pairs)
            torch.testing.assert_close((moved - noise).norm(dim=1), torch.full((20,), 1e-3, dtype=torch.float64))
            noise = moved
            height.append(non_uniformity(z1, z2, noise.numpy(), 0.05))
        assert len(height) == 5 and all(b > a for a, b in itertools.pairwise(height))
        torch.testing.assert_close(noise, loss.ascend(draw_noise(pairs, 4.0, 1.0), pairs))


def test_direction_of_the_ascent_is_autograd_s():
    z1, z2, _, start = problem()
    for candidates in (None, torch.tensor(z2)):
        noise = torch.tensor(start, requires_grad=True)
        logits = torch.cosine_similarity(torch.tensor(z1)[:, None], noise[None], dim=2) / 0.05
        if candidates is not None:
            logits = torch.cat(
                [torch.cosine_similarity(torch.tensor(z1)[:, None], candidates[None], dim=2) / 0.05, logits], 1
            )
        (g,) = torch.autograd.grad(logits.logsumexp(1).mean(), noise)
        expected = g / g.norm(dim=1, keepdim=True)
        torch.testing.assert_close(ascent_direction(torch.tensor(z1), noise.detach(), 0.05, candidates), expected)


def test_no_gradient_moves_no_noise():
    anchors = torch.tensor([[1.0, 0.0]])
    noise = torch.tensor([[2.0, 0.0], [0.0, 0.0]])  # already on the anchor; without a direction
    assert torch.equal(ascent_direction(anchors, noise, 0.05)[0], torch.zeros(2))
    assert torch.isfinite(ascent_direction(anchors, noise, 0.05)).all()


def test_ascent_never_enters_the_graph_of_the_encoder():
    z1, z2, frozen, _ = problem()
    a = torch.tensor(z1, requires_grad=True)
    pairs = dataclasses.replace(pairs_of(z1, z2, frozen), anchors=a)
    noise = build_loss("dclr").ascend(draw_noise(pairs, 1.0, 1.0), pairs)
    assert not noise.requires_grad
    assert torch.equal(noise, build_loss("dclr").ascend(draw_noise(pairs, 1.0, 1.0), pairs_of(z1, z2)))


# ---- noise


def test_noise_comes_from_the_seed_alone():
    z1, z2, _, start = problem()
    pairs = pairs_of(z1, z2)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(draw_noise(pairs, 2.0, 1.0), torch.tensor(start))
    assert torch.equal(torch.get_rng_state(), before)  # the generator that dropout uses is left alone
    torch.testing.assert_close(draw_noise(pairs, 2.0, 3.0), 3 * torch.tensor(start), rtol=1e-6, atol=0)
    assert not torch.equal(draw_noise(dataclasses.replace(pairs, seed=12), 2.0, 1.0), torch.tensor(start))
    free = dataclasses.replace(pairs, seed=None)
    assert not torch.equal(draw_noise(free, 2.0, 1.0), draw_noise(free, 2.0, 1.0))
    assert len(draw_noise(pairs, 2.5, 1.0)) == 12 and len(draw_noise(pairs, 0.0, 1.0)) == 0  # int(ratio x N)


def test_a_process_with_a_part_of_the_anchors_computes_its_rows_of_the_whole():
    z1, z2, frozen, _ = problem()
    for name in ("dclr", "dclr_released"):
        loss = build_loss(name, noise_ratio=2.0, noise_step_size=0.1)
        whole = pairs_of(z1, z2, frozen)
        part = dataclasses.replace(
            whole, anchors=whole.anchors[3:], targets=whole.targets[3:], reference=whole.reference[3:],
            reference_anchors=whole.reference_anchors[3:], batch_anchors=whole.anchors,
        )  # fmt: skip
        torch.testing.assert_close(loss.rows(part), loss.rows(whole)[3:], rtol=0, atol=1e-13)
        torch.testing.assert_close(part.anchors, whole.anchors[3:])


# ---- the released code, one departure a test


RELEASED = {"temperature": 0.1, "phi": 0.45, "noise_ratio": 2.0, "noise_steps": 3, "noise_step_size": 0.05}


@pytest.mark.parametrize("seed", [0, 1])
def test_released_equals_the_loop(seed):
    z1, z2, frozen, start = problem(seed)
    moved = ascended(start, 3, 0.05, lambda n: released_objective(z1, z2, n, 0.1))
    reference = cosines(frozen, frozen)
    check(build_loss("dclr_released", **RELEASED), z1, z2, frozen,
          lambda x, y: released_rows(x, y, moved, 0.1, reference, 0.45))  # fmt: skip


def test_released_climbs_candidates_and_noise_together():
    z1, z2, frozen, start = problem()
    pairs = pairs_of(z1, z2, frozen)
    paper = build_loss("dclr", noise_step_size=0.05, noise_steps=3, tau_u=0.1).ascend(torch.tensor(start), pairs)
    released = build_loss("dclr_released", **RELEASED).ascend(torch.tensor(start), pairs)
    assert (paper - released).abs().max() > 1e-3
    np.testing.assert_allclose(
        released, ascended(start, 3, 0.05, lambda n: released_objective(z1, z2, n, 0.1)), atol=1e-6
    )


def test_released_never_weights_noise():
    z1, z2, frozen, start = problem()
    frozen[0] = start[3]  # the paper's form removes this noise vector
    loss = build_loss("dclr_released", noise_ratio=2.0, noise_steps=0)
    expected = released_rows(z1, z2, start, 0.05, cosines(frozen, frozen), 0.9)
    np.testing.assert_allclose(loss.rows(pairs_of(z1, z2, frozen)), expected, atol=1e-8)


def test_released_threshold_is_phi_only_at_temperature_005():
    z1, z2, _, _ = problem()
    half = torch.eye(B, dtype=torch.float64) * 0.5 + 0.5  # every other sentence has reference cosine 0.5
    for temperature, removes in ((0.05, False), (0.02, True)):
        loss = build_loss("dclr_released", temperature=temperature, noise_ratio=0.0)
        same = loss(pairs_of(z1, z2, reference=half)) == loss(pairs_of(z1, z2, reference=torch.eye(B).double()))
        assert bool(same) is not removes
    at_phi = torch.full((B, B), 0.9, dtype=torch.float64)  # > there, >= in the paper
    loss = build_loss("dclr_released", noise_ratio=0.0, temperature=0.0625)
    assert loss(pairs_of(z1, z2, reference=at_phi)) == loss(pairs_of(z1, z2, reference=torch.eye(B).double()))


def test_released_removal_leaves_one_in_the_denominator():
    eye = torch.eye(2, dtype=torch.float64)
    alike = torch.ones(2, 2, dtype=torch.float64)
    opposed = Pairs(eye, torch.stack([eye[0], -eye[0]]), torch.arange(2), reference=alike, seed=0)  # s_01 = -1
    p = build_loss("dclr_released", noise_ratio=0.0).rows(opposed)[0]
    negative = math.exp(0) / (math.exp(20) + math.exp(0))  # e^0, although the logit -20 was "removed"
    assert p.item() == pytest.approx((-math.log(1 - negative) - math.log(1 - negative)) / 2, rel=1e-6)
    assert build_loss("dclr", noise_ratio=0.0).rows(opposed)[0].item() == 0.0  # the paper: nothing is left


def test_released_is_a_binary_cross_entropy_over_all_cells():
    z1, z2, _, start = problem()
    pairs = pairs_of(z1, z2, reference=torch.eye(B).double())
    others = torch.tensor(np.concatenate([z2, start]))
    logits = torch.cosine_similarity(torch.tensor(z1)[:, None], others[None], dim=2) / 0.05
    target = torch.eye(B, 3 * B, dtype=torch.float64)
    expected = torch.nn.functional.binary_cross_entropy(logits.softmax(1), target)  # the mean over 5 x 15 cells
    value = build_loss("dclr_released", noise_ratio=2.0, noise_steps=0)(pairs)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)
    assert value < build_loss("dclr", noise_ratio=2.0, noise_steps=0)(pairs) / B


def test_released_without_equal_texts():
    z1, z2, _, start = problem()
    excluded = torch.eye(B, dtype=torch.bool)  # as equal texts give it: the positive stays in all the same
    excluded[0, 3] = True
    reference = torch.eye(B).double()
    loss = build_loss("dclr_released", noise_ratio=2.0, noise_steps=0)
    rows = loss.rows(pairs_of(z1, z2, reference=reference, excluded=excluded))
    expected = released_rows(z1, z2, start, 0.05, reference.numpy(), 0.9)
    np.testing.assert_allclose(rows[1:], expected[1:], atol=1e-8)
    kept = [0, 1, 2, 4]
    alone = released_rows(z1[:1], z2[kept], start, 0.05, np.eye(1, 4), 0.9)[0]  # a cell of probability 0 costs nothing
    assert rows[0].item() == pytest.approx(alone * (len(kept) + len(start)) / (B + len(start)), rel=1e-6)


def test_released_survives_a_softmax_of_one():
    eye = torch.eye(
        4
    ).requires_grad_()  # float32: the positive's softmax rounds to 1, where the released code gives NaN
    pairs = Pairs(eye, torch.eye(4) * 2 - 1, torch.arange(4), reference=torch.eye(4), seed=0)
    value = build_loss("dclr_released", noise_ratio=0.0)(pairs)
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(eye.grad).all()


# ---- as others see it


@pytest.mark.parametrize(("name", "settings", "needs"), [
    ("dclr", {}, True), ("dclr", {"weighting": "distillation"}, True), ("dclr", {"weighting": "self"}, False),
    ("dclr", {"weighting": "none"}, False), ("dclr_released", {}, True), ("infonce", {}, False), ("focal", {}, False),
])  # fmt: skip
def test_says_whether_it_needs_a_reference(name, settings, needs):
    z1, z2, _, _ = problem()
    loss = build_loss(name, **settings)
    assert loss.needs_reference is needs
    if needs:
        with pytest.raises(UserError, match=f"loss {name} compares with a frozen encoder .* --reference_model"):
            loss(pairs_of(z1, z2))
    else:
        assert torch.isfinite(loss(pairs_of(z1, z2)))


def test_reference_is_the_cosine_of_the_frozen_vectors_without_gradient():
    z1, z2, frozen, _ = problem()
    pairs = pairs_of(z1, z2, frozen)
    np.testing.assert_allclose(pairs.reference, cosines(frozen, frozen), atol=1e-12)
    assert torch.equal(pairs.reference_anchors, torch.tensor(frozen)) and not pairs.reference.requires_grad


def test_what_the_loss_would_be_untrained_and_collapsed():
    plain = build_loss("dclr", noise_ratio=0.0).bounds(64, 384)
    assert plain == pytest.approx(
        {"loss_if_untrained": math.log(64), "loss_if_collapsed": math.log(64), "loss_if_perfect": 0}, abs=1e-6
    )
    before = torch.get_rng_state()
    noisy = build_loss("dclr").bounds(64, 384)  # 64 noise vectors of cosine 0 +- 1/sqrt(384)
    assert torch.equal(before, torch.get_rng_state())
    assert math.log(128) < noisy["loss_if_untrained"] < math.log(64 + 64 * 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": "focl"}, "base is 'focl', did you mean 'focal'.*allowed: infonce, focal"),
        ({"weighting": "teacher"}, "weighting is 'teacher'; allowed: reference, self, distillation, none"),
        ({"m": 0.3}, "m is 0.3, but base infonce has no margin"),
        ({"base": "focal", "m": -1.0}, "m is -1.0"),
        ({"phi": 0.0}, "phi is 0.0; it must be a number above 0"),
        ({"noise_ratio": -1.0}, "noise_ratio is -1.0; it must be a number of at least 0"),
        ({"noise_steps": -1}, "noise_steps is -1"),
        ({"sigma": 0.0}, "sigma is 0.0"),
        ({"tau_u": float("nan")}, "tau_u is nan"),
    ],
)
def test_refuses_with_the_remedy(settings, message):
    with pytest.raises(UserError, match=message):
        build_loss("dclr", **settings)


def test_the_log_says_by_how_much_the_ascent_moves_the_noise():
    z1, z2, frozen, start = problem()
    settings = STEPS | {"weighting": "none"}
    moved = ascended(start, 3, 0.05, lambda n: non_uniformity(z1, z2, n, 0.2))
    shift = np.abs(np.array(cosines(z1, moved)) - np.array(cosines(z1, start))).mean()
    pairs = pairs_of(z1, z2)
    found = build_loss("dclr", **settings).diagnostics(pairs)["noise_cosine_shift_mean"]
    assert found == pytest.approx(shift, rel=1e-6) and found > 1e-3
    for still in ({"noise_steps": 0}, {"noise_ratio": 0.0}):
        assert build_loss("dclr", **settings | still).diagnostics(pairs)["noise_cosine_shift_mean"] == 0
    of_length = [
        build_loss("dclr", noise_step_size=size, sigma=sigma, weighting="none").diagnostics(pairs)
        for size, sigma in ((0.02, 0.2), (0.1, 1.0))
    ]  # only the ratio of step and sigma counts, since the cosine forgets the length of the noise
    assert of_length[0]["noise_cosine_shift_mean"] == pytest.approx(of_length[1]["noise_cosine_shift_mean"], rel=1e-5)
