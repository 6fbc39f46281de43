"""What a loss sees (`Pairs`), and what a loss is (`ContrastiveLoss`).

Shape letters: B anchors of this process, N candidates (of all processes), D dimensions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError

LOSSES: dict[str, type[ContrastiveLoss]] = {}
BLOCK_CELLS = 2**20  # of B x N computed at a time on a CPU, 4 MB in float32: larger blocks are no faster there
BLOCK_ROWS = 256  # but at least so many rows: each block adds to the gradient of all candidates, N x D
HARD_MARGIN = 0.3  # m of losses without an m: a negative is hard above 1 - m (Hou & Li 2023, section 3)


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


def block_cells(device: torch.device) -> int:
    """Up to so many of its B x N cells a loss is computed as a whole, beyond that in blocks of rows."""
    return BLOCK_CELLS if device.type == "cpu" else 16 * BLOCK_CELLS  # launching kernels costs more than memory there


def block_rows(device: torch.device, candidates: int) -> int:
    """Rows of a block."""
    return max(block_cells(device) // max(candidates, 1), BLOCK_ROWS)


def blocks(anchors: Tensor, candidates: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows and their cosines (R, N), block after block, of unit vectors (B, D) and (N, D)."""
    step = block_rows(anchors.device, len(candidates))
    for first in range(0, max(len(anchors), 1), step):
        rows = slice(first, first + step)
        with torch.autocast(anchors.device.type, enabled=False):
            cosines = anchors[rows] @ candidates.T
        yield rows, cosines


@dataclass(frozen=True)
class EqualTexts:
    """The mask (B, N) of the candidates that have an anchor's text, made for the rows that are looked at: mask[rows].

    anchors: (B,), int64, equal where texts are equal. candidates: the same of the first n candidates, (n,).
    further: the other N - n, which equal no text.
    """

    anchors: Tensor
    candidates: Tensor
    further: int = 0

    def __getitem__(self, rows: slice) -> Tensor:
        return F.pad(self.anchors[rows].unsqueeze(1) == self.candidates.unsqueeze(0), (0, self.further))

    @property
    def T(self) -> EqualTexts:
        return EqualTexts(self.candidates, self.anchors)


@dataclass(frozen=True)
class EqualPairs:
    """`EqualTexts` where anchors and candidates are texts of their own: a candidate is excluded that has the text of
    the anchor or of its positive, or that is the positive of an anchor with this anchor's text.

    anchors, positives: (B,), int64, equal where texts are equal. candidates: (N,), texts of the candidates. owners:
    (n,), texts of the anchors of the first n candidates, whose positives they are.
    """

    anchors: Tensor
    positives: Tensor
    candidates: Tensor
    owners: Tensor

    def __getitem__(self, rows: slice) -> Tensor:
        anchors = self.anchors[rows].unsqueeze(1)
        texts = (anchors == self.candidates) | (self.positives[rows].unsqueeze(1) == self.candidates)
        return texts | F.pad(anchors == self.owners, (0, len(self.candidates) - len(self.owners)))

    @property
    def T(self) -> Tensor:
        return self[ALL].T


ALL = slice(None)


@dataclass(frozen=True)
class Pairs:
    """The contrastive problem of one step: each anchor has one positive, all other candidates are its negatives.

    anchors: (B, D), unnormalised.
    candidates: (N, D), unnormalised; N >= B.
    targets: (B,), int64: the index of each anchor's positive among the candidates.
    excluded: (B, N), bool, or what makes such rows: candidates that do not count as negatives of an anchor; None
        excludes nothing. The positive is never excluded.
    reference: (B, N), cosines of a frozen model, for the losses that ask for them.
    reference_anchors: (B, D'), the frozen model's vectors of the anchors.
    batch_anchors: (n, D), the anchors of all processes, whose positives are the first n candidates in order; None
        where ``anchors`` are all of them.
    weight: of each anchor's row in the loss; None is 1/B, the mean. With W processes it is W over the anchors of all
        of them, so that averaging gradients over processes gives the gradient of the mean over all anchors.
    seed: what a loss draws at random it draws from this, equal in all processes and repeated when a run is resumed;
        None draws from torch's own generator.
    own_negatives: (B,), int64: the index of each anchor's own hard negative among the candidates.
    own_negative_shift: added to the logit of the own hard negative: the logarithm of its weight in the denominator.
    """

    anchors: Tensor
    candidates: Tensor
    targets: Tensor
    excluded: Tensor | EqualTexts | EqualPairs | None = None
    reference: Tensor | None = None
    reference_anchors: Tensor | None = None
    batch_anchors: Tensor | None = None
    weight: float | None = None
    seed: int | None = None
    own_negatives: Tensor | None = None
    own_negative_shift: float = 0.0

    def cosines(self) -> Tensor:
        """(B, N)."""
        return cosine(self.anchors, self.candidates)

    def positive_mask(self, rows: slice = ALL) -> Tensor:
        """(R, N), bool: true at each anchor's positive."""
        return torch.arange(len(self.candidates), device=self.targets.device) == self.targets[rows].unsqueeze(1)

    def hidden_mask(self, rows: slice = ALL) -> Tensor | None:
        """(R, N), bool: true at the candidates that are neither positive nor negative; None where all are."""
        return None if self.excluded is None else self.excluded[rows] & ~self.positive_mask(rows)

    def negative_mask(self, rows: slice = ALL) -> Tensor:
        """(R, N), bool: true at the negatives of each anchor."""
        negatives = ~self.positive_mask(rows)
        return negatives if self.excluded is None else negatives & ~self.excluded[rows]


class ContrastiveLoss(nn.Module):
    """Base of all losses. A class statement with ``name=`` registers the loss; its ``__init__`` declares its settings.

    A loss is a formula over `Pairs`: it knows no model, rank, chunk or logging. One that gives its ``logits`` to
    `cross_entropy_rows` needs no (B, N) at once for large batches.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    citation: ClassVar[str]
    mask_duplicates: ClassVar[bool] = (
        False  # whether equal texts in a batch are excluded unless the user decides otherwise
    )
    needs_reference: bool = False  # whether `Pairs.reference` must be there
    references: ClassVar[int] = 1  # how many frozen encoders it may come from, where it must
    hard_margin: float = HARD_MARGIN  # diagnostics count a negative as hard above 1 minus this
    matryoshka_dims: Sequence[int] = ()  # the sizes to which vectors may be cut, where it trains several

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.name = name
            LOSSES[name] = cls

    def fit(self, dimensions: int) -> None:
        """Called once before training. dimensions: D, of the vectors that the loss is going to see.

        Raises:
            UserError: they do not suit its settings.
        """

    def rows(self, pairs: Pairs) -> Tensor:
        """Loss per anchor, (B,)."""
        raise NotImplementedError

    def forward(self, pairs: Pairs) -> Tensor:
        """Mean of `rows` over the anchors (of all processes, see `Pairs.weight`), a scalar."""
        rows = self.rows(pairs)
        return rows.mean() if pairs.weight is None else rows.sum() * pairs.weight

    def diagnostics(self, pairs: Pairs) -> dict[str, float]:
        """What the log says of the pairs of a step, besides the loss; a loss adds what is its own."""
        of_reference = {} if pairs.reference is None else describe_reference(pairs)
        bounds = self.bounds(len(pairs.candidates), pairs.anchors.shape[-1])
        return describe_pairs(pairs, self.hard_margin) | of_reference | bounds

    @torch.no_grad()
    def bounds(self, candidates: int, dimensions: int = 2, anchors: int = 1) -> dict[str, float]:
        """The loss of N candidates if every cosine were 0 (nothing is learnt: ln N for InfoNCE), if every cosine were
        1 (all vectors have collapsed into one), and if it were 1 for the positives and 0 for all others (perfect); a
        frozen reference would find no two sentences alike.

        Args:
            candidates: N.
            dimensions: D, for losses that draw vectors of their own.
            anchors: number of anchors to compute it for, where all of them have the same loss.
        """
        unlike = torch.eye(anchors, candidates) if self.needs_reference else None

        def value(z1: Tensor, z2: Tensor) -> float:
            return self(Pairs(z1[:anchors], z2, torch.arange(anchors), reference=unlike, seed=0)).item()

        x, y = torch.eye(dimensions)[:2].unsqueeze(1).expand(2, candidates, dimensions)
        perfect = self.loss_if_perfect(x[:1], torch.cat([x[:1], y[1:]]))
        return {"loss_if_untrained": value(x, y), "loss_if_collapsed": value(x, x), "loss_if_perfect": perfect}

    def loss_if_perfect(self, anchor: Tensor, candidates: Tensor) -> float:
        """Of one anchor (1, D), whose cosine is 1 with the first candidate and 0 with the others, (N, D)."""
        unlike = torch.eye(1, len(candidates)) if self.needs_reference else None
        return self(Pairs(anchor, candidates, torch.zeros(1, dtype=torch.long), reference=unlike, seed=0)).item()

    def cells(self, anchors: int, candidates: int, device: torch.device) -> int:
        """How many of the B x N cells the loss holds at a time, for the estimate of a step's memory."""
        return min(anchors, block_rows(device, candidates)) * candidates

    @property
    def config(self) -> dict[str, Any]:
        """Name and settings, such that ``build_loss(**config)`` gives the same loss."""
        return {"name": self.name} | {key: getattr(self, key) for key in settings_of(type(self))}

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.config.items() if key != "name")


@torch.no_grad()
def describe_pairs(pairs: Pairs, m: float) -> dict[str, float]:
    """Cosines of a step, named with their aggregation; the same for all losses, so that their curves compare.

    A negative is called hard where its cosine is above 1 - m. On several ranks: this rank's anchors against the
    candidates of all ranks.
    """
    anchors, candidates = normalize(pairs.anchors), normalize(pairs.candidates)
    found = anchors.new_empty(4, len(anchors))  # made before the loop, see `_BlockedCrossEntropy`
    counts = torch.empty_like(pairs.targets)
    for rows, cosines in blocks(anchors, candidates):
        negative = pairs.negative_mask(rows)
        counts[rows] = negative.sum(1)
        found[0, rows] = cosines.gather(1, pairs.targets[rows].unsqueeze(1)).squeeze(1)
        found[1, rows] = (cosines * negative).sum(1)
        found[2, rows] = ((cosines > 1 - m) & negative).sum(1).to(found.dtype)
        found[3, rows] = cosines.masked_fill(~negative, -torch.inf).amax(1)
    positive, sums, hard, hardest = found
    total = counts.sum().clamp(min=1)
    hardest = hardest[counts > 0]  # (<= B,)
    return {
        "positive_cosine_mean": positive.mean().item(),
        "negative_cosine_mean": (sums.sum() / total).item(),
        **({"hardest_negative_cosine_mean": hardest.mean().item()} if len(hardest) else {}),
        "hard_negative_share": (hard.sum() / total).item(),
        "negatives_per_anchor_mean": counts.float().mean().item(),
    }


@torch.no_grad()
def describe_reference(pairs: Pairs) -> dict[str, float]:
    """Mean and standard deviation of the cosines that the frozen reference has for the negatives."""
    negative = pairs.negative_mask()
    found = pairs.reference[..., negative].float() if pairs.reference is not None else negative.new_empty(0)
    if found.numel() < 2:
        return {}
    return {"reference_cosine_mean": found.mean().item(), "reference_cosine_std": found.std().item()}


Logits = Callable[[Tensor, Tensor], Tensor]  # cosines and the mask of the positives -> logits, cell by cell


def cross_entropy_rows(pairs: Pairs, logits: Logits) -> Tensor:
    """Cross entropy of the logits to each anchor's positive, without the excluded candidates: (B,).

    Beyond `block_cells` the (B, N) logits never exist as a whole: memory grows with N, and backward recomputes them.
    """
    if len(pairs.anchors) * len(pairs.candidates) > block_cells(pairs.anchors.device):
        with torch.autocast(pairs.anchors.device.type, enabled=False):
            return _BlockedCrossEntropy.apply(normalize(pairs.anchors), normalize(pairs.candidates), pairs, logits)
    scores = _hide(logits(pairs.cosines(), pairs.positive_mask()), pairs)
    return F.cross_entropy(scores, pairs.targets, reduction="none")


def _hide(scores: Tensor, pairs: Pairs, rows: slice = ALL) -> Tensor:
    """Logits (R, N), -inf at the excluded candidates; the own hard negative with its weight."""
    if pairs.own_negatives is not None and pairs.own_negative_shift:
        own = pairs.own_negatives[rows].unsqueeze(1)
        scores = scores.scatter_add(1, own, torch.full_like(own, pairs.own_negative_shift, dtype=scores.dtype))
    hidden = pairs.hidden_mask(rows)
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


class _BlockedCrossEntropy(torch.autograd.Function):
    """`cross_entropy_rows` of unit vectors. Kept for backward are they and the logsumexp of each row.

    With P the softmax of a block and g the gradient of its rows: d logits = g (P - [positive]), d cosines by the
    derivative of the loss's own formula, d anchors = d cosines @ candidates, d candidates = d cosines.T @ anchors.
    """

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, candidates: Tensor, pairs: Pairs, logits: Logits) -> Tensor:
        # Made before the loop: what a block leaves behind would split the memory that the next block could take.
        positives, totals = anchors.new_empty(2, len(anchors))
        for rows, cosines in blocks(anchors, candidates):
            scores = _hide(logits(cosines, pairs.positive_mask(rows)), pairs, rows)
            torch.logsumexp(scores, 1, out=totals[rows])
            positives[rows] = scores.gather(1, pairs.targets[rows].unsqueeze(1)).squeeze(1)
        ctx.save_for_backward(anchors, candidates, totals)
        ctx.pairs, ctx.logits = pairs, logits
        return totals - positives

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        anchors, candidates, totals = ctx.saved_tensors
        pairs, gradient = ctx.pairs, gradients[0].unsqueeze(1)  # (B, 1)
        d_anchors, d_candidates = torch.empty_like(anchors), torch.zeros_like(candidates)
        with torch.autocast(anchors.device.type, enabled=False):
            for rows, cosines in blocks(anchors, candidates):
                with torch.enable_grad():
                    scores = ctx.logits(cosines.requires_grad_(), pairs.positive_mask(rows))
                d_scores = (_hide(scores.detach(), pairs, rows) - totals[rows].unsqueeze(1)).exp_()
                d_scores.scatter_add_(1, pairs.targets[rows].unsqueeze(1), d_scores.new_full((len(d_scores), 1), -1.0))
                (d_cosines,) = torch.autograd.grad(scores, cosines, d_scores.mul_(gradient[rows]))
                d_anchors[rows] = d_cosines @ candidates
                d_candidates.addmm_(d_cosines.T, anchors[rows])
        return d_anchors, d_candidates, None, None


def settings_of(loss: type[ContrastiveLoss]) -> dict[str, inspect.Parameter]:
    """The settings that a loss declares in its constructor."""
    return {name: p for name, p in inspect.signature(loss.__init__).parameters.items() if name != "self"}


def missing_reference(loss: str) -> UserError:
    """The error of a loss that needs a frozen encoder and was given none."""
    without = ", or use --loss dclr with --weighting self or none" if loss.startswith("dclr") else ""
    return UserError(
        f"loss {loss} compares with a frozen encoder and was given none: name one with --reference_model, for "
        f"instance princeton-nlp/unsup-simcse-bert-base-uncased{without}"
    )


def required_reference(pairs: Pairs, loss: str) -> Tensor:
    """(B, N), the frozen model's cosines.

    Raises:
        UserError: no frozen model was given.
    """
    if pairs.reference is None:
        raise missing_reference(loss)
    return pairs.reference
