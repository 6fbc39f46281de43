"""Pairs with hard negatives: golden values, a loop twin with equal texts, and blocks."""

import math

import numpy as np
import pytest
import torch
from golden import case_of, check
from oracles import cosines, numerical_gradient

from hf_focalcse import build_loss, losses
from hf_focalcse.data.views import View
from hf_focalcse.errors import UserError
from hf_focalcse.objectives import Contrastive
from hf_focalcse.objectives.pairs import make_pairs


@pytest.mark.parametrize("number", range(3))
def test_golden_values(shared, number):
    inputs, settings, expected = case_of(shared, "supervised_simcse", number)
    z = torch.stack([inputs[name] for name in ("z1", "z2", "z3")], 1).requires_grad_()
    pairs = make_pairs(z, hard_negative_weight=settings["hard_negative_weight"])
    check(pairs.own_negative_shift, expected["own_negative_logit_shift"])
    loss = build_loss("infonce", temperature=settings["tau"])
    check(loss.rows(pairs), expected["rows"])
    value = loss(pairs)
    check(value, expected["loss"])
    value.backward()
    for view in range(3):
        check(z.grad[:, view], expected[f"grad_z{view + 1}"])


IDS = [[1, 2, 3], [4, 5, 6], [1, 7, 5], [8, 9, 2], [10, 5, 11]]  # texts of anchor, positive and hard negative


def twin(z, ids, base, weight, tau=0.1, m=0.3):
    """Mean over rows, the equal texts left out by three rules."""
    n = len(z)
    candidates = [(j, view) for view in (1, 2) for j in range(n)]
    total = 0.0
    for i in range(n):
        s = {c: cosines(z[i : i + 1, 0], z[c[0] : c[0] + 1, c[1]])[0][0] for c in candidates}
        logit = {
            c: (x / tau if base == "infonce" else (x * x if c == (i, 1) else x * (x + m)) / tau) for c, x in s.items()
        }
        kept = 0.0
        for j, view in candidates:
            text = ids[j][view]
            equal = text in (ids[i][0], ids[i][1]) or (view == 1 and ids[j][0] == ids[i][0])
            if (j, view) == (i, 1) or not equal:
                kept += (weight if (j, view) == (i, 2) else 1.0) * math.exp(logit[j, view])
        total += math.log(kept) - logit[i, 1]
    return total / n


@pytest.mark.parametrize("cells", [None, 10])
@pytest.mark.parametrize("base", ["infonce", "focal"])
@pytest.mark.parametrize("weight", [1.0, 0.4])
def test_value_and_gradient_equal_the_loop(monkeypatch, base, weight, cells):
    if cells:
        monkeypatch.setattr(losses.base, "BLOCK_CELLS", cells)
        monkeypatch.setattr(losses.base, "BLOCK_ROWS", 2)
    z = np.random.default_rng(0).normal(size=(5, 3, 4))
    own = torch.tensor(z, requires_grad=True)
    pairs = make_pairs(own, torch.tensor(IDS), hard_negative_weight=weight)
    value = build_loss(base, temperature=0.1)(pairs)
    assert value.item() == pytest.approx(twin(z, IDS, base, weight), abs=1e-12)
    value.backward()
    np.testing.assert_allclose(own.grad, numerical_gradient(lambda x: twin(x, IDS, base, weight), z), atol=1e-6)
    masked = pairs.hidden_mask()
    assert masked.sum() == 7 and not np.isclose(
        twin(z, IDS, base, weight), twin(z, np.arange(15).reshape(5, 3), base, 1)
    )


def test_what_does_not_go_is_refused():
    views = [View(columns=(name,)) for name in ("a", "b", "c")]
    with pytest.raises(UserError, match="asks a reference about one text a row, and rows of pairs have 3"):
        Contrastive(build_loss("dclr"), reference=object(), views=views)
    with pytest.raises(UserError, match="hard_negative_weight is 0; it must be a number above 0"):
        Contrastive(build_loss("focal"), views=views, hard_negative_weight=0)
