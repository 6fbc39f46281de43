"""What a loss sees (`Pairs`), what a loss is (`ContrastiveLoss`) and how one is built by name (`build_loss`).

Shape letters: B anchors of this process, N candidates (of all processes), D dimensions.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError, suggest

LOSSES: dict[str, type[ContrastiveLoss]] = {}


def normalize(vectors: Tensor) -> Tensor:
    """(…, D) -> (…, D) of length 1, in float32 or better; a zero vector stays zero and gets no gradient."""
    vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    # Dividing by infinity, not by a small epsilon: the gradient at a zero vector is 0, not 1/epsilon.
    return vectors / torch.where(length > torch.finfo(length.dtype).tiny, length, torch.inf)


def cosine(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Cosines (B, N) of (B, D) and (N, D) as one matrix product, in float32 or better also under autocast."""
    with torch.autocast(anchors.device.type, enabled=False):
        return normalize(anchors) @ normalize(candidates).T


@dataclass(frozen=True)
class Pairs:
    """The contrastive problem of one step: each anchor has one positive, all other candidates are its negatives.

    anchors: (B, D), unnormalised.
    candidates: (N, D), unnormalised; N >= B.
    targets: (B,), int64: the index of each anchor's positive among the candidates.
    excluded: (B, N), bool: candidates that are no negative of an anchor (equal texts); None excludes nothing.
        The positive is never excluded.
    reference: (B, N), cosines of a frozen model, for the losses that ask for them.
    reference_anchors: (B, D'), the frozen model's vectors of the anchors.
    batch_anchors: (N, D), the anchors of all processes, detached; None where ``anchors`` are all of them.
    weight: of each anchor's row in the loss; None is 1/B, the mean. With W processes it is W over the anchors of all
        of them, so that averaging gradients over processes gives the gradient of the mean over all anchors.
    seed: what a loss draws at random it draws from this, equal in all processes and repeated when a run is resumed;
        None draws from torch's own generator.
    """

    anchors: Tensor
    candidates: Tensor
    targets: Tensor
    excluded: Tensor | None = None
    reference: Tensor | None = None
    reference_anchors: Tensor | None = None
    batch_anchors: Tensor | None = None
    weight: float | None = None
    seed: int | None = None

    def cosines(self) -> Tensor:
        """(B, N)."""
        return cosine(self.anchors, self.candidates)

    def positive_mask(self) -> Tensor:
        """(B, N), bool: true at each anchor's positive."""
        return F.one_hot(self.targets, len(self.candidates)).bool()

    def negative_mask(self) -> Tensor:
        """(B, N), bool: true at the negatives of each anchor."""
        negatives = ~self.positive_mask()
        return negatives if self.excluded is None else negatives & ~self.excluded


class ContrastiveLoss(nn.Module):
    """Base of all losses. A class statement with ``name=`` registers the loss; its ``__init__`` declares its settings.

    A loss is a formula over `Pairs`: it knows no model, rank, chunk or logging.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    citation: ClassVar[str]
    mask_duplicates: ClassVar[bool] = (
        False  # whether equal texts in a batch are excluded unless the user says otherwise
    )
    needs_reference: bool = False  # whether `Pairs.reference` must be there

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.name = name
            LOSSES[name] = cls

    def rows(self, pairs: Pairs) -> Tensor:
        """Loss per anchor, (B,)."""
        raise NotImplementedError

    def forward(self, pairs: Pairs) -> Tensor:
        """Mean of `rows` over the anchors (of all processes, see `Pairs.weight`), a scalar."""
        rows = self.rows(pairs)
        return rows.mean() if pairs.weight is None else rows.sum() * pairs.weight

    @property
    def config(self) -> dict[str, Any]:
        """Name and settings, such that ``build_loss(**config)`` gives the same loss."""
        return {"name": self.name} | {key: getattr(self, key) for key in settings_of(type(self))}

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.config.items() if key != "name")


def cross_entropy_rows(logits: Tensor, pairs: Pairs) -> Tensor:
    """Cross entropy of logits (B, N) to each anchor's positive, without the excluded candidates: (B,)."""
    if pairs.excluded is not None:
        logits = logits.masked_fill(pairs.excluded & ~pairs.positive_mask(), -torch.inf)
    return F.cross_entropy(logits, pairs.targets, reduction="none")


def settings_of(loss: type[ContrastiveLoss]) -> dict[str, inspect.Parameter]:
    """The settings that a loss declares in its constructor."""
    return {name: p for name, p in inspect.signature(loss.__init__).parameters.items() if name != "self"}


def build_loss(name: str, **settings: Any) -> ContrastiveLoss:
    """The loss registered as ``name`` with ``settings``.

    Raises:
        UserError: an unknown name, or a setting that this loss does not have.
    """
    if name not in LOSSES:
        raise UserError(f"there is no loss {name!r}{suggest(name, LOSSES)}; allowed: {', '.join(sorted(LOSSES))}")
    allowed = settings_of(LOSSES[name])
    for key in settings:
        if key not in allowed:
            raise UserError(
                f"loss {name!r} has no setting {key!r}{suggest(key, allowed)}; it has: {', '.join(allowed)}"
            )
    return LOSSES[name](**settings)


def positive_number(name: str, value: float) -> float:
    """``value``, or a UserError where it is not a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} is {value}; it must be a number above 0")
    return value


def missing_reference(loss: str) -> UserError:
    """What to say where a loss needs a frozen encoder and there is none."""
    return UserError(
        f"loss {loss} compares with a frozen encoder and was given none: name one with --reference_model, for "
        "instance princeton-nlp/unsup-simcse-bert-base-uncased, or use --loss dclr with --weighting self or none"
    )
