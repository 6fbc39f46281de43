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


# Each of these is a `Pooler.pool`. The mask marks what is pooled: a prompt may be left out of it.


def first_token(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    return token_at(layers[-1], mask.int().argmax(1))


def last_token(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    place = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
    there = mask.gather(1, place.unsqueeze(1)).bool()  # not in an empty text without special tokens, which gives 0
    return token_at(layers[-1], place).where(there, layers[-1].new_zeros(()))


def token_at(hidden: Tensor, place: Tensor) -> Tensor:
    """(B, L, D) and a place in each row (B,) -> (B, D)."""
    return hidden.gather(1, place.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])).squeeze(1)


def mean_sqrt_length(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(layers[-1].dtype)
    return (layers[-1] * weights).sum(1) / weights.sum(1).sqrt().clamp(min=1e-9)


def weighted_mean(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
    places = mask.new_ones(mask.shape).cumsum(1)  # 1, 2, 3, …
    weights = (mask * places).unsqueeze(-1).to(layers[-1].dtype)
    return (layers[-1] * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


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
        sentence_transformers: its names in the configuration of that library's Pooling, in the order of the vectors.
        marked: whether the mask that it gets marks the mask token of a template alone.
        averaged: the hidden states whose average is pooled, as a WeightedLayerPooling of that library does before its
            Pooling; none: the last one alone.
    """

    pool: Callable[[Layers, Tensor, Tensor], Tensor]
    code: str
    all_layers: bool = False
    first_only: bool = False
    projection: bool = False
    sentence_transformers: tuple[str, ...] = ("mean_tokens",)
    averaged: tuple[int, ...] = ()
    marked: bool = False

    def layer_weights(self, layers: int) -> list[float]:
        """The weights of the layers + 1 hidden states whose average is pooled."""
        weights = [0.0] * (layers + 1)
        for place in self.averaged:
            weights[place] += 1.0
        return weights


FIRST = "output.last_hidden_state[:, 0]"
LAST = "output.last_hidden_state[torch.arange(len(texts)), mask.shape[1] - 1 - mask[..., 0].flip(1).argmax(1)]"
MARKED = 'batch["input_ids"].flip(1) == tokenizer.mask_token_id'
AT_MASK = f"output.last_hidden_state[torch.arange(len(texts)), mask.shape[1] - 1 - ({MARKED}).int().argmax(1)]"
MEAN = "({} * mask).sum(1) / mask.sum(1)"
LAYERS = "(output.hidden_states[{}] + output.hidden_states[-1]) / 2"
PLACES = "mask.cumsum(1) * mask"
POOLERS = {
    "cls": Pooler(first_token, FIRST, first_only=True, projection=True, sentence_transformers=("cls_token",)),
    "cls_before_pooler": Pooler(first_token, FIRST, first_only=True, sentence_transformers=("cls_token",)),
    "mask": Pooler(first_token, AT_MASK, projection=True, sentence_transformers=(), marked=True),
    "mean": Pooler(mean_last, MEAN.format("output.last_hidden_state")),
    "max": Pooler(
        max_last,
        "output.last_hidden_state.masked_fill(mask == 0, float('-inf')).amax(1)",
        sentence_transformers=("max_tokens",),
    ),
    "mean_sqrt_len": Pooler(
        mean_sqrt_length,
        "(output.last_hidden_state * mask).sum(1) / mask.sum(1).sqrt()",
        sentence_transformers=("mean_sqrt_len_tokens",),
    ),
    "weighted_mean": Pooler(
        weighted_mean,
        f"(output.last_hidden_state * {PLACES}).sum(1) / ({PLACES}).sum(1)",
        sentence_transformers=("weightedmean_tokens",),
    ),
    "last": Pooler(last_token, LAST, sentence_transformers=("lasttoken",)),
    "avg_top2": Pooler(
        mean_top2,
        MEAN.format(LAYERS.format(-2)),
        all_layers=True,
        averaged=(-2, -1),
    ),
    # Hidden state 1, as SimCSE since October 2024; the next row has state 0, which SimCSE took before.
    "avg_first_last": Pooler(
        mean_first_last,
        MEAN.format(LAYERS.format(1)),
        all_layers=True,
        averaged=(1, -1),
    ),
    "avg_embedding_last": Pooler(
        mean_embedding_last,
        MEAN.format(LAYERS.format(0)),
        all_layers=True,
        averaged=(0, -1),
    ),
}
ALIASES = {"avg": "mean"}
JOINED = "+"  # between the poolers whose vectors are concatenated


def resolve_pooler(name: str) -> str:
    """The row's own name for ``name`` or an alias of it; of several that are joined by +, those of each.

    Raises:
        UserError: there is no such pooler, or one is joined that reads several layers or has a projection.
    """
    names = [ALIASES.get(part, part) for part in name.split(JOINED)]
    for part in names:
        if part not in POOLERS:
            allowed = [*POOLERS, *ALIASES]
            raise UserError(f"there is no pooler {part!r}{suggest(part, allowed)}; allowed: {', '.join(allowed)}")
    unfit = [part for part in names if POOLERS[part].all_layers or POOLERS[part].projection]
    if len(names) > 1 and unfit:
        fit = [row for row, found in POOLERS.items() if not (found.all_layers or found.projection)]
        raise UserError(f"pooler {unfit[0]!r} cannot be concatenated ({name!r}); these can: {', '.join(fit)}")
    return JOINED.join(names)


def pooler_of(name: str) -> Pooler:
    """The row of a pooler; of several that are joined by +, one whose vectors are theirs, concatenated.

    Raises:
        UserError: as `resolve_pooler` does.
    """
    rows = [POOLERS[part] for part in resolve_pooler(name).split(JOINED)]
    if len(rows) == 1:
        return rows[0]

    def pool(layers: Layers, mask: Tensor, ids: Tensor) -> Tensor:
        import torch

        return torch.cat([row.pool(layers, mask, ids) for row in rows], dim=-1)

    return Pooler(
        pool,
        f"torch.cat([{', '.join(row.code for row in rows)}], dim=-1)",
        sentence_transformers=tuple(mode for row in rows for mode in row.sentence_transformers),
    )


def explicit_projection(name: str) -> str:
    """The use of the projection when this pooler is given for evaluation: "always" for ``cls``, as in the public
    evaluation scripts, "none" for every other row: PromptBERT too is judged without it."""
    row = POOLERS.get(ALIASES.get(name, name))
    return "always" if row is not None and row.projection and not row.marked else "none"
