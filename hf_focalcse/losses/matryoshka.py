"""Matryoshka: any loss, summed over the first d dimensions of the vectors for several sizes d."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from .base import ContrastiveLoss, Pairs, describe_pairs

CITATION = """@inproceedings{kusupati2022matryoshka,
  title = {Matryoshka Representation Learning},
  author = {Kusupati, Aditya and Bhatt, Gantavya and Rege, Aniket and others},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2022}
}"""


class Matryoshka(ContrastiveLoss):
    """sum_d w_d loss(the first d dimensions), so that shortened vectors are trained too (Kusupati et al. 2022).

    A loss reads cosines alone, so each size is normalised on its own. The sum is one of ``MatryoshkaLoss`` of
    sentence-transformers: not a mean, so K sizes have a K-fold gradient. It holds no name of its own: `build_loss`
    makes it of any loss that is given ``matryoshka_dims``. What a frozen reference says is the same for every size;
    its vectors lie in no shortened space, so noise that is drawn in one is not compared with them.

    Args:
        loss: of the first d dimensions.
        dims: the sizes d, in any order.
        weights: w_d, as many; None is 1 for each.

    Raises:
        UserError: a size is no whole number of at least 1 or given twice, or a weight is not above 0 or too many.
    """

    def __init__(self, loss: ContrastiveLoss, dims: Sequence[int], weights: Sequence[float] | None = None):
        super().__init__()
        self.loss = loss
        self.matryoshka_dims = check_sizes(dims, "matryoshka_dims")
        self.matryoshka_weights = check_weights(dims, weights)
        for name in ContrastiveLoss.__annotations__.keys() - {"matryoshka_dims"}:  # what the loss says of itself
            setattr(self, name, getattr(loss, name))
        shown = ", ".join(map(str, self.matryoshka_dims))
        vars(self)["formula"] = f"Σ_d w_d ℓ_i(first d of the dimensions), d in {{{shown}}}, where {loss.formula}"
        vars(self)["citation"] = f"{loss.citation}\n\n{CITATION}"

    def fit(self, dimensions: int) -> None:
        """As for every loss: no size is larger than the vectors."""
        check_sizes(self.matryoshka_dims, "matryoshka_dims", dimensions)
        self.loss.fit(dimensions)

    def sizes(self, pairs: Pairs) -> Iterator[tuple[float, Pairs]]:
        """Weight and pairs of each size: vectors (B, D) and (N, D) cut to (B, d) and (N, d)."""
        for size, weight in zip(self.matryoshka_dims, self.matryoshka_weights, strict=True):
            yield weight, shortened(pairs, size)

    def rows(self, pairs: Pairs) -> Tensor:
        return torch.stack([weight * self.loss.rows(cut) for weight, cut in self.sizes(pairs)]).sum(0)

    def forward(self, pairs: Pairs) -> Tensor:
        return torch.stack([weight * self.loss(cut) for weight, cut in self.sizes(pairs)]).sum()

    def diagnostics(self, pairs: Pairs) -> dict[str, float]:
        """Of the whole vectors, as for the loss alone; the bounds are of the sum. The cosine of the positives and the
        hardest negative is there for each size below."""
        whole = self.loss.diagnostics(pairs) | self.bounds(len(pairs.candidates), pairs.anchors.shape[-1])
        for size in self.matryoshka_dims:
            if size < pairs.anchors.shape[-1]:
                found = describe_pairs(shortened(pairs, size), self.hard_margin)
                names = ("positive_cosine_mean", "hardest_negative_cosine_mean")
                whole |= {f"{name}_{size}d": found[name] for name in names if name in found}
        return whole

    def bounds(self, candidates: int, dimensions: int = 2, anchors: int = 1) -> dict[str, float]:
        """As for every loss: the sum of those of the sizes."""
        total: dict[str, float] = {}
        for size, weight in zip(self.matryoshka_dims, self.matryoshka_weights, strict=True):
            found = self.loss.bounds(candidates, max(min(size, dimensions), 2), anchors)
            total = {name: total.get(name, 0.0) + weight * value for name, value in found.items()}
        return total

    def cells(self, anchors: int, candidates: int, device: torch.device) -> int:
        """Those of every size, since the gradient of the sum needs all of them."""
        return len(self.matryoshka_dims) * self.loss.cells(anchors, candidates, device)

    @property
    def config(self) -> dict[str, Any]:
        own = {"matryoshka_dims": self.matryoshka_dims, "matryoshka_weights": self.matryoshka_weights}
        return self.loss.config | own


def shortened(pairs: Pairs, size: int) -> Pairs:
    """Pairs whose vectors are cut to their first ``size`` dimensions; with fewer dimensions they stay whole."""
    if size >= pairs.anchors.shape[-1]:
        return pairs
    others = None if pairs.batch_anchors is None else pairs.batch_anchors[:, :size]
    anchors, candidates = pairs.anchors[:, :size], pairs.candidates[:, :size]
    return dataclasses.replace(
        pairs, anchors=anchors, candidates=candidates, batch_anchors=others, reference_anchors=None
    )


def check_sizes(dims: Sequence[int], name: str, most: int | None = None) -> list[int]:
    """The sizes, the largest first.

    Raises:
        UserError: there is none, one is no whole number of at least 1 (and at most ``most``), or is given twice.
    """
    sizes = sorted(dims, reverse=True)
    shown = " ".join(map(str, dims))
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise UserError(f"{name} is {shown or 'empty'}; it takes whole numbers of at least 1, such as 384 256 128 64")
    twice = next((size for size, following in itertools.pairwise(sizes) if size == following), None)
    if twice is not None:
        raise UserError(f"{name} is {shown}, where {twice} occurs twice; give each size once")
    if most is not None and sizes[0] > most:
        raise UserError(
            f"{name} has {sizes[0]}, but vectors of this encoder have {most} dimensions; give sizes of at most {most}"
        )
    return sizes


def check_weights(dims: Sequence[int], weights: Sequence[float] | None) -> list[float]:
    """The weights in the order of the sizes from the largest down; 1 for each where none are given.

    Raises:
        UserError: there are not as many as sizes, or one is not a number above 0.
    """
    given = [1.0] * len(dims) if weights is None else [float(weight) for weight in weights]
    shown = " ".join(map(str, weights or []))
    if len(given) != len(dims):
        raise UserError(
            f"matryoshka_weights has {len(given)} numbers ({shown}) for {len(dims)} sizes; give one for each of "
            "matryoshka_dims, in their order, or leave it out for 1 each"
        )
    if any(not (math.isfinite(weight) and weight > 0) for weight in given):
        raise UserError(
            f"matryoshka_weights is {shown}; each must be a number above 0: leave out a size that shall not count"
        )
    return [weight for _, weight in sorted(zip(dims, given, strict=True), reverse=True)]
