"""Losses in blocks of rows: equal to the whole (B, N) in value, rows and gradients, in memory that is no N x N."""

import math

import numpy as np
import pytest
import torch

from benchmarks.peaks import apart, peak_of
from hf_focalcse.errors import UserError
from hf_focalcse.losses import LOSSES, EqualTexts, Pairs, base, build_loss
from hf_focalcse.losses.base import describe_pairs
from hf_focalcse.objectives.pairs import make_pairs

CASES = {
    "infonce": ("infonce", {}),
    "focal": ("focal", {}),
    "focal, weights detached": ("focal", {"detach_weights": True}),
    "focal, clamped": ("focal", {"clamp_negatives": True, "clamp_positives": True}),
    "focal, symmetric": ("focal", {"symmetric": True}),
    "dclr": ("dclr", {"phi": 0.3}),
    "dclr, focal, self": ("dclr", {"base": "focal", "weighting": "self", "phi": 0.3}),
    "dclr, distillation": ("dclr", {"weighting": "distillation"}),
}
ROWS, N, CELLS = 7, 9, 2 * 9  # blocks of 2 rows, the last of one; of one row where dclr adds noise


@pytest.fixture
def blocked(monkeypatch):
    """Calls a function with blocks of ``cells`` cells."""

    def call(function, cells=CELLS):
        with monkeypatch.context() as patch:
            patch.setattr(base, "BLOCK_CELLS", cells)
            patch.setattr(base, "BLOCK_ROWS", 1)
            return function()

    return call


def draw(rows=ROWS, candidates=N, seed=0):
    rng = np.random.default_rng(seed)
    z2 = rng.normal(size=(candidates, 5))
    targets = rng.permutation(candidates)[:rows]
    z1 = z2[targets] + 0.8 * rng.normal(size=(rows, 5))
    z1[1], z2[targets[2]], z1[0] = 0, 0, -z2[targets[0]]  # zero vectors on either side, an opposed positive
    excluded = rng.random((rows, candidates)) < 0.3  # some of them positives, which stay in
    return torch.tensor(z1), torch.tensor(z2), torch.tensor(targets), torch.tensor(excluded)


def measure(loss, z1, z2, *rest, dtype=torch.float64, **more):
    """Value, rows and both gradients of a step; each anchor's row has an upstream gradient of its own."""
    a, c = (z.to(dtype).clone().requires_grad_() for z in (z1, z2))
    reference = torch.linspace(-1, 1, len(z1) * len(z2), dtype=dtype).reshape(len(z1), -1)
    pairs = Pairs(a, c, *rest, reference=reference, seed=0, **more)
    rows = loss.rows(pairs)
    (loss(pairs) + (rows * torch.linspace(-1, 2, len(rows))).sum()).backward()
    return {"value": loss(pairs).detach(), "rows": rows.detach(), "anchors": a.grad, "candidates": c.grad}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_whole(blocked, case, masked):
    loss = build_loss(CASES[case][0], **CASES[case][1])
    z1, z2, targets, excluded = draw(candidates=ROWS if "symmetric" in case else N)
    rest = (targets, excluded if masked else None)
    whole = measure(loss, z1, z2, *rest, weight=0.3)
    assert not whole["anchors"][1].any() and not whole["candidates"][targets[2]].any()
    for cells in (1, CELLS, 6 * N):  # blocks of 1, of 2 and of 6 rows
        parts = blocked(lambda cells=cells: measure(loss, z1, z2, *rest, weight=0.3), cells)
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, rtol=1e-12, atol=1e-12, msg=f"{name}, {cells} cells")


def test_the_blocks_are_used(blocked, monkeypatch):
    seen = []
    monkeypatch.setattr(base, "blocks", lambda a, c, made=base.blocks: seen.extend(x := list(made(a, c))) or iter(x))
    z1, z2, targets, _ = draw()
    measure(build_loss("focal"), z1, z2, targets)
    assert not seen
    blocked(lambda: build_loss("focal")(Pairs(z1, z2, targets)))
    assert [(rows.start, cosines.shape) for rows, cosines in seen] == [
        (0, (2, N)),
        (2, (2, N)),
        (4, (2, N)),
        (6, (1, N)),
    ]


@pytest.mark.parametrize("case", ["infonce", "focal", "focal, clamped", "dclr, focal, self", "dclr, distillation"])
def test_gradient_by_finite_differences(blocked, case):
    name, settings = CASES[case]
    loss = build_loss(name, **settings | ({"noise_steps": 0} if name == "dclr" else {}))  # they see the anchors
    z1, z2, targets, excluded = draw(4, 6)
    z1, z2 = torch.tensor(np.random.default_rng(1).normal(size=(2, 6, 5))).requires_grad_()  # no zero, no kink
    reference = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(4, 6)

    def rows(a, c):
        return loss.rows(Pairs(a, c, targets, excluded, reference, seed=0))

    assert blocked(lambda: torch.autograd.gradcheck(rows, (z1[:4], z2)), 12)


@pytest.mark.parametrize("case", ["infonce", "focal", "focal, symmetric"])
def test_half_precision_and_autocast_compute_in_float32(blocked, case):
    loss = build_loss(CASES[case][0], **CASES[case][1])
    z1, z2, targets, excluded = draw(ROWS, ROWS)
    z1, z2 = z1.bfloat16(), z2.bfloat16()

    def cast():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return measure(loss, z1, z2, targets, excluded, dtype=torch.bfloat16)

    whole, parts = measure(loss, z1, z2, targets, excluded, dtype=torch.float32), blocked(cast)
    assert parts["rows"].dtype == torch.float32
    torch.testing.assert_close(parts["rows"], whole["rows"], rtol=1e-5, atol=1e-5)
    for name in ("anchors", "candidates"):  # the gradient of a bfloat16 vector is rounded to it
        torch.testing.assert_close(parts[name].float(), whole[name], rtol=2e-2, atol=2e-2)


# ---- equal texts without a mask


def test_equal_texts_are_the_mask_row_by_row():
    ids = torch.tensor([3, 1, 3, 2])
    mask = torch.zeros(4, 6, dtype=torch.bool)  # the last two candidates are nobody's text
    mask[:, :4] = ids.unsqueeze(1) == ids.unsqueeze(0)
    lazy = EqualTexts(ids, ids, further=2)
    assert torch.equal(lazy[:], mask) and torch.equal(lazy[1:3], mask[1:3])
    other = EqualTexts(ids[:2], ids)
    assert torch.equal(other.T[:], other[:].T)


@pytest.mark.parametrize("views", [2, 3])
def test_pairs_with_equal_texts_in_blocks(blocked, views):
    z = torch.randn(8, views, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.tensor([1, 2, 3, 1, 2, 2, 7, 8])

    def step():
        embeddings = z.clone().requires_grad_()
        pairs = make_pairs(embeddings, ids)
        loss = build_loss("focal")(pairs)
        loss.backward()
        return loss.detach(), embeddings.grad, pairs.negative_mask(), describe_pairs(pairs, 0.3)

    (a, b, c, whole), (x, y, z_, parts) = step(), blocked(step, 16)
    assert torch.equal(c, z_) and c.sum() == 8 * 8 * (views - 1) - 8 - 2 - 6
    torch.testing.assert_close((x, y), (a, b), rtol=1e-12, atol=1e-12)
    assert parts == pytest.approx(whole, rel=1e-12)


# ---- diagnostics


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_bounds_of_one_row_are_those_of_all(name):
    loss, n = build_loss(name), 12
    found = loss.bounds(n, 6)
    x, y = torch.eye(6)[:2].unsqueeze(1).expand(2, n, 6)
    for key, others in (("loss_if_untrained", y), ("loss_if_collapsed", x)):
        whole = loss(Pairs(x, others, torch.arange(n), reference=torch.eye(n), seed=0)).item()
        assert found[key] == pytest.approx(whole, rel=1e-5), key


def test_bounds_of_the_symmetric_loss():
    found = build_loss("focal", symmetric=True).bounds(64)
    assert found["loss_if_untrained"] == pytest.approx(math.log(64))
    assert found["loss_if_collapsed"] == pytest.approx(10.14, abs=5e-3)


def test_no_anchor_of_this_process(blocked):
    none = torch.zeros(0, dtype=torch.int64)
    pairs = Pairs(torch.zeros(0, 5), torch.ones(30, 5), none, EqualTexts(none, torch.arange(30)))
    assert blocked(lambda: build_loss("focal").rows(pairs)).shape == (0,)
    assert math.isnan(blocked(lambda: describe_pairs(pairs, 0.3))["negatives_per_anchor_mean"])


def test_symmetric_still_needs_a_square(blocked):
    z1, z2, targets, _ = draw()
    with pytest.raises(UserError, match="7 anchors and 9 candidates"):
        blocked(lambda: build_loss("focal", symmetric=True)(Pairs(z1, z2, targets)))


# ---- memory


def peak_of_a_step(case):
    """Bytes of a step of 10,000 sentences, after a small one, in which the libraries take what they keep."""
    loss = build_loss(CASES[case][0], **CASES[case][1])
    peak = 0
    for n in (2_000, 10_000):
        z = torch.randn(n, 2, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)

        def step(z=z, n=n):
            pairs = make_pairs(z, torch.arange(n))
            loss(pairs).backward()
            describe_pairs(pairs, 0.3)
            loss.bounds(n, 8)

        peak = peak_of(step)
    return peak


@pytest.mark.parametrize("case", ["infonce", "focal, symmetric"])
def test_memory_is_no_n_by_n(case):
    """N x N would be 400 MB in float32, several of which a loss holds."""
    peak = apart(peak_of_a_step, case)
    print(f"{case}: {peak / 1e6:.0f} MB")
    assert peak < 345e6
