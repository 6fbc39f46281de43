"""The default objective: a contrastive loss over two views of each sentence, with a frozen reference where it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..losses import ContrastiveLoss, missing_reference
from ..losses.base import Pairs
from .base import Batch, Objective
from .pairs import NEGATIVES, make_pairs
from .reference import References, Stopwatch


class Contrastive(Objective):
    """Views (B, V, L) -> embeddings (B, V, D) -> pairs -> loss, a mean over the anchors of all processes.

    Args:
        criterion: a loss of `build_loss`.
        mask_duplicates: equal texts in a batch are not used as negatives of each other; None leaves it to the loss.
        reference: a frozen encoder of `load_model`, for the losses that compare with one, or a list of several. They
            are held beside this module, not in it: no checkpoint, optimizer or engine sees them.
        reference_weights: of several; None weighs all alike, see `References`.
        negatives: "global", those of all processes, or "local".
        max_seq_length: tokens of a sentence that the reference reads.

    Raises:
        UserError: the loss needs a reference and none is given, or more are given than the loss uses; an unknown value
            of ``negatives``, or weights that do not belong to the references.
    """

    def __init__(
        self,
        criterion: ContrastiveLoss,
        mask_duplicates: bool | None = None,
        reference: Any = None,
        negatives: str = "global",
        max_seq_length: int = 32,
        reference_weights: Sequence[float] | None = None,
    ):
        super().__init__()
        references = list(reference) if isinstance(reference, (list, tuple)) else [reference] * (reference is not None)
        if criterion.needs_reference and not references:
            raise missing_reference(criterion.name)
        if references and not criterion.needs_reference:
            raise UserError(f"loss {criterion} uses no reference model, but one is given; leave --reference_model out")
        if len(references) > criterion.references:
            raise UserError(
                f"loss {criterion} compares with at most {criterion.references} reference model(s), but "
                f"{len(references)} are given; leave out {len(references) - criterion.references} of --reference_model"
            )
        if reference_weights is not None and len(references) < 2:
            raise UserError(
                "--reference_weights weighs several reference models against each other; leave it out, or give two "
                "to --reference_model"
            )
        if negatives not in NEGATIVES:
            raise UserError(f"negatives is {negatives!r}; it must be one of {', '.join(NEGATIVES)}")
        self.criterion = criterion
        self.mask_duplicates = criterion.mask_duplicates if mask_duplicates is None else mask_duplicates
        self.negatives = negatives
        self.reference = References(references, max_seq_length, reference_weights) if references else None
        self.side_time = Stopwatch() if references else None
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._beside: Callable[[], Any] | None = None  # a parameter of the encoder

    def collate(self, collator: Callable[[list[Any]], dict[str, Tensor]]) -> Callable[[list[Any]], dict[str, Tensor]]:
        """With the tokens of each reference's own tokenizer, where there are any."""
        return collator if self.reference is None else self.reference.collate(collator)

    def attach(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._autocast = autocast
        self._beside = lambda: next(model.parameters())

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Pairs]:
        text_ids = batch["text_ids"] if self.mask_duplicates else None  # (B,)
        embeddings = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])  # (B, V, D)
        reference = self._refer(batch)  # (B, D')
        if "real" in batch:  # all ranks run the last batch whole (FSDP2 and ZeRO-3 count on it), then drop its padding
            real = batch["real"]
            embeddings, text_ids = embeddings[real], None if text_ids is None else text_ids[real]
            reference = None if reference is None else reference[real]
        pairs = make_pairs(embeddings, text_ids, reference, self.negatives, batch.get("seed"))
        return self.criterion(pairs), pairs

    def _refer(self, batch: Batch) -> Tensor | None:
        """Vectors of the frozen references, (B, D'), on the device and in the precision of the encoder."""
        if self.reference is None or self.side_time is None:
            return None
        if self._beside is None:
            raise RuntimeError("attach was not called: the reference does not know the encoder that it lies beside")
        with self._autocast(), self.side_time:
            return self.reference.encode(batch, self._beside())

    def identity(self) -> dict[str, Any]:
        return super().identity() | {
            "loss": self.criterion.config | {"mask_duplicates": self.mask_duplicates},
            "negatives": self.negatives,
        }

    def cost(self, steps: Stopwatch) -> dict[str, float]:
        """Seconds a batch that the reference takes, and its share of forward and backward."""
        if self.side_time is None or not steps.laps:
            return {}
        own = self.side_time.seconds()
        return {
            "reference_seconds_per_batch": own / self.side_time.laps,
            "reference_share_of_step": own / steps.seconds(),
        }

    def describe(self) -> dict[str, Any]:
        loss = self.criterion
        texts = {"formula": loss.formula, "paper": loss.paper, "citation": loss.citation}
        return loss.config | {"mask_duplicates": self.mask_duplicates} | texts
