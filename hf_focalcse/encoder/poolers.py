"""Poolers: hidden states -> one vector a sentence; one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..errors import UserError, suggest

if TYPE_CHECKING:  # the command line lists the poolers without waiting for torch
    from torch import Tensor

Layers: TypeAlias = "tuple[Tensor, ...]"  # hidden states (B, L, D): 0 is the embedding layer's output, -1 the last


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of (B, L, D) over the positions where mask (B, L) is 1: (B, D)."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def masked_max(hidden: Tensor, mask: Tensor) -> Tensor:
    """Maximum of (B, L, D) over the positions where mask (B, L) is 1: (B, D)."""
    return hidden.masked_fill(~mask.bool().unsqueeze(-1), float("-inf")).amax(1)


# Each of these is a `Pooler.pool`.


def first_token(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    return layers[-1][:, 0]


def mean_last(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    return masked_mean(layers[-1], mask)


def max_last(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    return masked_max(layers[-1], mask)


def mean_top2(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    return masked_mean((layers[-1] + layers[-2]) / 2, mask)


def mean_first_last(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    return masked_mean((layers[1] + layers[-1]) / 2, mask)


def mean_embedding_last(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    return masked_mean((layers[0] + layers[-1]) / 2, mask)


@dataclass(frozen=True)
class Pooler:
    """One way to pool. A new one is one row of `POOLERS`.

    Args:
        pool: (hidden states, mask (B, L), token ids (B, L)) -> (B, D).
        code: the same as an expression for users of plain transformers, over ``output`` and ``mask`` (B, L, 1).
        all_layers: whether it reads every layer's output, and not the last one's alone.
        first_only: whether it reads the last layer's first token and nothing else.
        projection: whether the pooled vector can be followed by the encoder's Linear and tanh.
        sentence_transformers: its name in the configuration of that library's Pooling; None where it has no such name.
    """

    pool: Callable[[Layers, Tensor, Tensor], Tensor]
    code: str
    all_layers: bool = False
    first_only: bool = False
    projection: bool = False
    sentence_transformers: str | None = None


FIRST = "output.last_hidden_state[:, 0]"
MEAN = "({} * mask).sum(1) / mask.sum(1)"
LAYERS = "(output.hidden_states[{}] + output.hidden_states[-1]) / 2"
POOLERS = {
    "cls": Pooler(first_token, FIRST, first_only=True, projection=True, sentence_transformers="cls_token"),
    "cls_before_pooler": Pooler(first_token, FIRST, first_only=True, sentence_transformers="cls_token"),
    "mean": Pooler(mean_last, MEAN.format("output.last_hidden_state"), sentence_transformers="mean_tokens"),
    "max": Pooler(
        max_last,
        "output.last_hidden_state.masked_fill(mask == 0, float('-inf')).amax(1)",
        sentence_transformers="max_tokens",
    ),
    "avg_top2": Pooler(mean_top2, MEAN.format(LAYERS.format(-2)), all_layers=True),
    # Hidden state 1, as SimCSE since October 2024; the next row has state 0, which SimCSE took before.
    "avg_first_last": Pooler(mean_first_last, MEAN.format(LAYERS.format(1)), all_layers=True),
    "avg_embedding_last": Pooler(mean_embedding_last, MEAN.format(LAYERS.format(0)), all_layers=True),
}
ALIASES = {"avg": "mean"}


def resolve_pooler(name: str) -> str:
    """The row's own name for ``name`` or an alias of it.

    Raises:
        UserError: there is no such pooler.
    """
    name = ALIASES.get(name, name)
    if name not in POOLERS:
        allowed = [*POOLERS, *ALIASES]
        raise UserError(f"there is no pooler {name!r}{suggest(name, allowed)}; allowed: {', '.join(allowed)}")
    return name


def explicit_projection(name: str) -> str:
    """The use of the projection when this pooler is given for evaluation: "always" for ``cls``, as in the public
    evaluation scripts, "none" for every other row."""
    row = POOLERS.get(ALIASES.get(name, name))
    return "always" if row is not None and row.projection else "none"
