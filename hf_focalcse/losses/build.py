"""A loss by its name and settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UserError, suggest
from .base import LOSSES, ContrastiveLoss, settings_of
from .matryoshka import Matryoshka
from .values import one_of

BASES = ("infonce", "focal")  # the losses that others have as their contrastive term


def build_loss(
    name: str,
    *,
    matryoshka_dims: Sequence[int] | None = None,
    matryoshka_weights: Sequence[float] | None = None,
    **settings: Any,
) -> ContrastiveLoss:
    """The loss registered as ``name`` with ``settings``; with ``matryoshka_dims`` its sum over these sizes, see
    `Matryoshka`.

    Raises:
        UserError: an unknown name, a setting that this loss does not have, or sizes and weights that do not fit.
    """
    if name not in LOSSES:
        raise UserError(f"there is no loss {name!r}{suggest(name, LOSSES)}; allowed: {', '.join(sorted(LOSSES))}")
    allowed = settings_of(LOSSES[name])
    for key in settings:
        if key not in allowed:
            raise UserError(
                f"loss {name!r} has no setting {key!r}{suggest(key, allowed)}; it has: {', '.join(allowed)}"
            )
    loss = LOSSES[name](**settings)
    if matryoshka_dims is None:
        if matryoshka_weights is not None:
            raise UserError(
                "matryoshka_weights is given, but no matryoshka_dims to weight; leave it out, or add these"
            )
        return loss
    return Matryoshka(loss, matryoshka_dims, matryoshka_weights)


def contrastive_term(base: str, temperature: float, m: float | None) -> ContrastiveLoss:
    """The loss ``base``, whose logits another loss takes; ``m`` is focal's margin, its default where it is None.

    Raises:
        UserError: ``base`` is none of `BASES`, or has no margin and one is given.
    """
    one_of("base", base, BASES)
    if m is not None and base != "focal":
        raise UserError(f"m is {m}, but base {base} has no margin; leave m out or use base focal")
    margin: dict[str, Any] = {} if m is None else {"m": m}
    return build_loss(base, temperature=temperature, **margin)
