"""Matryoshka: any loss summed over prefixes of the vectors equals a loop over them, and fits what losses fit."""

import dataclasses

import pytest
import torch

from hf_focalcse.errors import UserError
from hf_focalcse.losses import LOSSES, Pairs, build_loss
from hf_focalcse.losses.base import EqualTexts

SIZES, WEIGHTS = [8, 5, 3], [1.0, 0.5, 2.0]


def pairs(dimensions=8, further=0) -> Pairs:
    """Six anchors, with equal texts among them, a reference, and candidates without an anchor."""
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randn(6, dimensions, generator=generator, dtype=torch.float64)
    candidates = torch.randn(6 + further, dimensions, generator=generator, dtype=torch.float64)
    candidates[:6] += anchors
    ids = torch.tensor([0, 1, 2, 1, 4, 5])
    reference = torch.rand(6, 6 + further, generator=generator, dtype=torch.float64)
    return Pairs(
        anchors.requires_grad_(),
        candidates.requires_grad_(),
        torch.arange(6),
        EqualTexts(ids, ids, further),
        reference,
        torch.randn(6, dimensions, generator=generator, dtype=torch.float64),
        seed=3,
    )


def by_loop(loss, given: Pairs):
    """The sum with each prefix copied, normalised beforehand and scored by a loss of its own."""
    total = 0.0
    for size, weight in zip(SIZES, WEIGHTS, strict=True):
        unit = [
            torch.stack([row[:size] / row[:size].norm() for row in vectors])
            for vectors in (given.anchors, given.candidates)
        ]
        width = given.reference_anchors if size == given.anchors.shape[1] else None
        cut = dataclasses.replace(given, anchors=unit[0], candidates=unit[1], reference_anchors=width)
        total = total + weight * loss(cut)
    return total


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_equals_a_loop_over_the_sizes(name):
    given = pairs()
    value = build_loss(name, matryoshka_dims=SIZES, matryoshka_weights=WEIGHTS)(given)
    twin = by_loop(build_loss(name), given)
    torch.testing.assert_close(value, twin)
    inputs = given.anchors, given.candidates
    for one, other in zip(torch.autograd.grad(value, inputs), torch.autograd.grad(twin, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        assert one.abs().min(0).values.max() > 0  # every prefix is trained


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_says_of_itself_what_the_loss_says(name):
    alone, loss = build_loss(name), build_loss(name, matryoshka_dims=[3, 8], matryoshka_weights=[2, 1])
    assert loss.config == alone.config | {"matryoshka_dims": [8, 3], "matryoshka_weights": [1.0, 2.0]}
    assert build_loss(**loss.config).config == loss.config
    for of in ("name", "paper", "mask_duplicates", "needs_reference", "hard_margin"):
        assert getattr(loss, of) == getattr(alone, of)
    assert loss.matryoshka_dims == [8, 3] and alone.matryoshka_dims == ()
    assert alone.formula in loss.formula and alone.citation in loss.citation
    device = torch.device("cpu")
    assert loss.cells(6, 6, device) == 2 * alone.cells(6, 6, device)
    said = loss.diagnostics(pairs())
    assert {"positive_cosine_mean", "positive_cosine_mean_3d", "loss_if_untrained"} <= said.keys()
    assert "positive_cosine_mean_8d" not in said


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_bounds_are_those_of_the_sum(name):
    alone, loss = build_loss(name), build_loss(name, matryoshka_dims=[16, 4], matryoshka_weights=[1, 3])
    found, parts = loss.bounds(8, 16), [alone.bounds(8, size) for size in (16, 4)]
    assert found == {key: pytest.approx(parts[0][key] + 3 * parts[1][key]) for key in parts[0]}


def test_extra_candidates_count_at_every_size():
    given = pairs(further=4)
    value = build_loss("infonce", matryoshka_dims=SIZES, matryoshka_weights=WEIGHTS)(given)
    torch.testing.assert_close(value, by_loop(build_loss("infonce"), given))
    assert value > build_loss("infonce", matryoshka_dims=SIZES, matryoshka_weights=WEIGHTS)(pairs())


def test_one_size_of_all_dimensions_is_the_loss_alone():
    given = pairs()
    torch.testing.assert_close(build_loss("focal", matryoshka_dims=[8])(given), build_loss("focal")(given))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"matryoshka_dims": []}, "matryoshka_dims is empty; it takes whole numbers of at least 1"),
        ({"matryoshka_dims": [4, 0]}, "matryoshka_dims is 4 0; it takes whole numbers"),
        ({"matryoshka_dims": [4, 2.5]}, "matryoshka_dims is 4 2.5; it takes whole numbers"),
        ({"matryoshka_dims": [4, 8, 4]}, "matryoshka_dims is 4 8 4, where 4 occurs twice"),
        ({"matryoshka_dims": [8, 4], "matryoshka_weights": [1]}, "has 1 numbers (1) for 2 sizes"),
        (
            {"matryoshka_dims": [8, 4], "matryoshka_weights": [1, 0]},
            "matryoshka_weights is 1 0; each must be",
        ),
        ({"matryoshka_dims": [8], "matryoshka_weights": [float("nan")]}, "each must be a number above 0"),
        ({"matryoshka_weights": [1]}, "matryoshka_weights is given, but no matryoshka_dims"),
    ],
)
def test_sizes_and_weights_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(UserError) as mistake:
        build_loss("infonce", **settings)
    assert said in str(mistake.value)


def test_a_size_above_the_vectors_is_refused():
    build_loss("infonce", matryoshka_dims=[8, 4]).fit(8)
    with pytest.raises(UserError, match="matryoshka_dims has 16, but vectors of this encoder have 8 dimensions"):
        build_loss("infonce", matryoshka_dims=[16, 4]).fit(8)
