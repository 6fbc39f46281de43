"""Augmentations that make the views of a sentence differ beyond the encoder's own dropout (ConSERT, Yan et al. 2021).

A batch is augmented by one draw for all its rows, before they are split into chunks, and each chunk takes its rows of
it: chunks give the same result as the whole batch. Draws come from torch's generator, like those of dropout, and
repeat with the seed.

Shape letters: R rows (sentences x views), V views, L tokens, D dimensions. Padding is on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import UserError, suggest

if TYPE_CHECKING:  # the command line lists the augmentations and must not wait for torch
    from torch import Tensor


@dataclass
class Drawn:
    """What augmentations do to the rows of a batch; None stands for nothing.

    order: (R, L) int64, which token is read at each place. tokens (R, L) bool and features (R, D) bool: false where
    the output of the embedding layer is set to zero.
    """

    order: Tensor | None = None
    tokens: Tensor | None = None
    features: Tensor | None = None

    def of(self, rows: Tensor, length: int) -> Drawn:
        """The part that belongs to some rows, cut at ``length`` tokens."""
        order, tokens, features = (None if x is None else x[rows] for x in (self.order, self.tokens, self.features))
        return Drawn(None if order is None else order[:, :length], None if tokens is None else tokens[:, :length],
                     features)  # fmt: skip

    def keep(self) -> Tensor | None:
        """(R, L or 1, D or 1) bool, false where the output of the embedding layer is set to zero; None: nowhere."""
        tokens, features = self.tokens, self.features
        parts = [None if tokens is None else tokens.unsqueeze(2), None if features is None else features.unsqueeze(1)]
        found = [part for part in parts if part is not None]
        return found[0] & found[-1] if found else None


@dataclass(frozen=True)
class Augmentation:
    """One way to change a view.

    rate: the share of tokens or features that it changes; None for an augmentation without one. cuts: whether it sets
    parts of the embedding layer's output to zero. moves: whether tokens change places.
    """

    cuts: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    rate: float | None = None

    def __str__(self) -> str:
        """As it is asked for, ``name`` or ``name:rate``."""
        name = next((name for name, (kind, _) in AUGMENTATIONS.items() if kind is type(self)), type(self).__name__)
        return name if self.rate is None else f"{name}:{self.rate:g}"

    def draw(self, mask: Tensor, dimensions: int) -> Drawn:
        """Mask (R, L) -> what to do to each row. [CLS] and [SEP] count as tokens."""
        return Drawn()


class Dropout(Augmentation):
    """No change: the encoder's dropout alone makes views differ, as in SimCSE."""


class TokenShuffle(Augmentation):
    """The encoder reads the tokens of a sentence in random order; the pooler sees each at its own place again.

    This equals permuting position ids, and works in every family: with absolute, relative or rotary positions and with
    attention in windows.
    """

    moves = True

    def draw(self, mask: Tensor, dimensions: int) -> Drawn:
        return Drawn(order=random_ranks(mask).argsort(1))


class TokenCutoff(Augmentation):
    """int(n x rate) of the n token vectors of a sentence are set to zero."""

    cuts = True

    def draw(self, mask: Tensor, dimensions: int) -> Drawn:
        return Drawn(tokens=random_ranks(mask) >= share(mask, self.rate))


class SpanCutoff(Augmentation):
    """int(n x rate) consecutive token vectors of a sentence are set to zero (Shen et al. 2020)."""

    cuts = True

    def draw(self, mask: Tensor, dimensions: int) -> Drawn:
        length = share(mask, self.rate)  # (R, 1)
        starts = mask.sum(1, keepdim=True) - length + 1  # places where the span may begin
        start = (mask[:, :1].float().uniform_() * starts).long()
        at = numbered(mask)
        return Drawn(tokens=(at < start) | (at >= start + length))


class FeatureCutoff(Augmentation):
    """int(D x rate) features are set to zero, the same at all tokens of a sentence."""

    cuts = True

    def draw(self, mask: Tensor, dimensions: int) -> Drawn:
        every = mask.new_ones(len(mask), dimensions)
        return Drawn(features=random_ranks(every) >= share(every, self.rate))


AUGMENTATIONS: dict[str, tuple[type[Augmentation], float | None]] = {  # name -> (class, its rate if none is given)
    "dropout": (Dropout, None),
    "token_shuffle": (TokenShuffle, None),
    "token_cutoff": (TokenCutoff, 0.15),
    "feature_cutoff": (FeatureCutoff, 0.2),
    "span_cutoff": (SpanCutoff, 0.15),
}


def build_augmentation(text: str) -> Augmentation:
    """``name`` or ``name:rate`` -> the augmentation.

    Raises:
        UserError: an unknown name, a rate that is not in (0, 1), or a rate for an augmentation without one.
    """
    name, colon, given = text.partition(":")
    if name not in AUGMENTATIONS:
        near, allowed = suggest(name, AUGMENTATIONS), ", ".join(AUGMENTATIONS)
        raise UserError(f"there is no augmentation {name!r}{near}; allowed: {allowed}")
    kind, rate = AUGMENTATIONS[name]
    if not colon:
        return kind(rate)
    if rate is None:
        hint = "; its rate is --dropout" if name == "dropout" else ""
        raise UserError(f"augmentation {name} has no rate, but {text!r} gives one{hint}")
    try:
        rate = float(given)
    except ValueError:
        rate = -1.0
    if not 0 < rate < 1:
        raise UserError(f"the rate in {text!r} must be a number above 0 and below 1, as in {name}:0.2")
    return kind(rate)


def build_augmentations(texts: Sequence[str] | None, views: int = 2) -> tuple[Augmentation, ...]:
    """One augmentation for each view, from as many texts or from one for all views.

    Raises:
        UserError: the number of texts is neither 1 nor that of the views, or one of them is wrong.
    """
    texts = texts or ["dropout"]
    if len(texts) not in (1, views):
        raise UserError(
            f"{len(texts)} augmentations are given ({' '.join(texts)}) for {views} views; "
            "give one for all, or one for each"
        )
    return tuple(build_augmentation(text) for text in (texts if len(texts) == views else [*texts] * views))


def draw_views(augmentations: Sequence[Augmentation], mask: Tensor, dimensions: int) -> Drawn:
    """Mask (B, V, L) -> one `Drawn` for the B x V rows: each view's augmentation draws for the rows of that view.

    Raises:
        UserError: there are more or fewer views than augmentations.
    """
    views = mask.shape[1] if mask.dim() == 3 else 1
    if views != len(augmentations):
        raise UserError(f"{len(augmentations)} augmentations for {views} views of a sentence; give one for each view")
    rows, length = mask.shape[0] * views, mask.shape[-1]
    shapes = {"order": length, "tokens": length, "features": dimensions}
    whole = Drawn()
    for view, augmentation in enumerate(augmentations):
        drawn = augmentation.draw(mask.reshape(-1, views, length)[:, view], dimensions)
        for name, width in shapes.items():
            part = getattr(drawn, name)
            if part is None:
                continue
            if getattr(whole, name) is None:  # in the other views every token stays in its place and nothing is zero
                every = mask.new_ones(rows, width)
                setattr(whole, name, numbered(every) if name == "order" else every.bool())
            getattr(whole, name)[view::views] = part
    return whole


def random_ranks(mask: Tensor) -> Tensor:
    """Mask (R, L) -> a random permutation of 0…n-1 over the n places where it is 1; the places after them stay."""
    draw = mask.float().uniform_()  # float32, since not every device has float64
    behind = numbered(mask).float() + 1  # in order, and larger than every draw
    return draw.where(mask.bool(), behind).argsort(1).argsort(1)


def numbered(mask: Tensor) -> Tensor:
    """0…L-1 in every row, of the shape (R, L) of ``mask``."""
    return mask.new_ones(mask.shape).long().cumsum(1) - 1


def share(mask: Tensor, rate: float | None) -> Tensor:
    """int(n x rate) of the n places where the mask is 1: (R, 1) int64."""
    added = 1e-9  # so that 10 x 0.3, which is a little less in binary fractions, gives 3
    shares = [int(n * (rate or 0.0) + added) for n in range(mask.shape[1] + 1)]  # here: a device may lack float64
    return mask.new_tensor(shares).long()[mask.sum(1, keepdim=True).long()]
