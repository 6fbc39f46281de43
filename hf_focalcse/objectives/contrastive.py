"""The default objective: a contrastive loss over two views of each sentence, with a frozen reference where it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from ..data.prompted import Prompted
from ..data.views import View, Views
from ..encoder.denoising import Denoising
from ..encoder.marked import check_prompted
from ..errors import UserError
from ..losses import ContrastiveLoss, missing_reference
from ..losses.base import Pairs
from ..losses.values import positive_number
from .base import READ, Batch, Objective
from .masking import MaskedTokens
from .pairs import NEGATIVES, make_pairs
from .reference import References, Stopwatch

OF_ROWS = (
    "input_ids",
    "attention_mask",
    "text_ids",
    "view_ids",
    "text_tokens",
)  # what a batch has for each of its rows


class Contrastive(Objective, name="contrastive"):
    """Views (B, V, L) -> embeddings (B, V, D) -> pairs -> loss, a mean over the anchors of all processes.

    Args:
        criterion: a loss of `build_loss`.
        mask_duplicates: equal texts in a batch are not used as negatives of each other; None leaves it to the loss.
        reference: a frozen encoder of `load_model`, for the losses that compare with one, or a list of several. They
            are held beside this module, not in it: no checkpoint, optimizer or engine sees them.
        reference_weights: of several; None weighs all alike, see `References`.
        views: of each row, see `Views`. A third one is a hard negative.
        hard_negative_weight: of an anchor's own hard negative in the denominator, 1 for those of others; above 0.
        negatives: "global", those of all processes, or "local".
        max_seq_length: tokens of a sentence that the reference reads.
        mlm_weight: of masked language modelling beside the loss, over the tokens of all views (Gao et al. 2021,
            section 6.2); None has none. mlm_probability: the share of the tokens that is to be guessed.

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
        views: int | Sequence[View] = 2,
        hard_negative_weight: float = 1.0,
        mlm_weight: float | None = None,
        mlm_probability: float = 0.15,
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
        self.views = views
        self.hard_negative_weight = positive_number("hard_negative_weight", hard_negative_weight)
        columns = {kind.columns for kind in (() if isinstance(views, int) else views)}
        self.of_pairs = len(columns) > 1
        if self.of_pairs and references:
            raise UserError(
                f"loss {criterion.name} asks a reference about one text a row, and rows of pairs have {len(columns)}; "
                "use --loss infonce or focal for pairs"
            )
        self.max_seq_length = max_seq_length
        self.reference = References(references, max_seq_length, reference_weights) if references else None
        self.side_time = Stopwatch() if references else None
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._beside: Callable[[], Any] | None = None  # a parameter of the encoder
        self.mlm_weight, self.mlm_probability = mlm_weight, mlm_probability
        if mlm_weight is not None:
            positive_number("mlm_weight", mlm_weight)
            self.tokens = MaskedTokens(mlm_probability, whole_words=False, named="mlm_probability")
        self._guessed: Tensor | None = None  # the loss of masked language modelling in the last step

    def collator(self, tokenizer: Any, max_seq_length: int, seed: int) -> Callable[[list[Any]], dict[str, Tensor]]:
        return Views(tokenizer, max_seq_length, self.views, seed)

    def collate(self, collator: Callable[[list[Any]], dict[str, Tensor]]) -> Callable[[list[Any]], dict[str, Tensor]]:
        """With the tokens of each reference's own tokenizer, where there are any."""
        return collator if self.reference is None else self.reference.collate(collator)

    def attach(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._autocast = autocast
        self._beside = lambda: next(model.parameters())
        self.criterion.fit(model.dimensions)
        if self.mlm_weight is not None:
            self.tokens.attach(model)
        if self.criterion.matryoshka_dims:  # what scores the encoder or exports it has to know
            model.config.focal_cl = model.config.focal_cl | {"matryoshka_dims": list(self.criterion.matryoshka_dims)}
        kinds = () if isinstance(self.views, int) else self.views
        if self.prompted:
            check_prompted(model, kinds, self.max_seq_length)
        denoised = any(kind.denoised for kind in self.prompted)
        model.denoising = Denoising.of(model, self.prompted) if denoised else None
        longest = max((kind.longest(self.max_seq_length) for kind in kinds), default=0)
        if longest > model.max_length():
            raise UserError(
                f"max_seq_length is {self.max_seq_length} and the views make up to {longest} tokens of it, but this "
                f"encoder takes {model.max_length()}; give a smaller --max_seq_length"
            )

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Pairs]:
        embeddings = model(**{name: batch[name] for name in READ if name in batch})  # (B, V, D)
        reference = self._refer(batch)  # (B, D')
        beside = self._guess_tokens(batch)
        if "real" in batch:  # all ranks run the last batch whole (FSDP2 and ZeRO-3 count on it), then drop its padding
            real = batch["real"]
            embeddings, reference = embeddings[real], None if reference is None else reference[real]
            batch = {name: batch[name][real] for name in OF_ROWS if name in batch} | {"seed": batch.get("seed")}
        embeddings = self.project(embeddings)
        pairs = make_pairs(
            embeddings,
            self._text_ids(batch),
            reference,
            self.negatives,
            batch.get("seed"),
            self.hard_negative_weight,
        )
        pairs = self.extend(pairs, batch)
        return self.criterion(pairs) + self.further(batch, embeddings) + beside, pairs

    def _text_ids(self, batch: Batch) -> Tensor | None:
        """(B, V) where views are different texts, else (B,): which are equal; None where that does not matter.

        Raises:
            UserError: the collator gives none.
        """
        if not self.mask_duplicates:
            return None
        ids: Tensor | None = batch.get("view_ids", batch.get("text_ids"))
        if ids is None:
            raise UserError(
                "the data_collator gives no text_ids (B,), which say what texts are equal; add them, or give "
                "mask_duplicates=False"
            )
        return ids

    def _guess_tokens(self, batch: Batch) -> Tensor | float:
        """The weighted loss of masked language modelling, where there is one."""
        if self.mlm_weight is None:
            return 0.0
        guessed = self.tokens.loss(batch)
        self._guessed = guessed.detach()
        return self.mlm_weight * guessed

    def diagnostics(self, pairs: Pairs) -> dict[str, float]:
        guessed = {} if self._guessed is None else {"mlm_loss": self._guessed.item()}
        return super().diagnostics(pairs) | guessed

    def project(self, embeddings: Tensor) -> Tensor:
        """Embeddings (B, V, D) -> what the loss compares, where a subclass puts something between them."""
        return embeddings

    def further(self, batch: Batch, embeddings: Tensor) -> Tensor | float:
        """What a subclass adds to the loss; embeddings: those that the loss compares, (B, V, D)."""
        return 0.0

    def extend(self, pairs: Pairs, batch: Batch) -> Pairs:
        """The pairs of a batch with what a subclass adds to them, such as further negatives."""
        return pairs

    def _refer(self, batch: Batch) -> Tensor | None:
        """Vectors of the frozen references, (B, D'), on the device and in the precision of the encoder."""
        if self.reference is None or self.side_time is None:
            return None
        if self._beside is None:
            raise RuntimeError("attach was not called: the reference does not know the encoder that it lies beside")
        with self._autocast(), self.side_time:
            return self.reference.encode(batch, self._beside())

    def identity(self) -> dict[str, Any]:
        return (
            super().identity()
            | {
                "loss": self.criterion.config | {"mask_duplicates": self.mask_duplicates},
                "negatives": self.negatives,
                "hard_negative_weight": self.hard_negative_weight,
            }
            | ({"templates": [(kind.template.text, kind.denoised) for kind in self.prompted]} if self.prompted else {})
            | self._masked_settings()
        )

    def _masked_settings(self) -> dict[str, float]:
        if self.mlm_weight is None:
            return {}
        return {"mlm_weight": self.mlm_weight, "mlm_probability": self.mlm_probability}

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
        weight = {} if self.hard_negative_weight == 1 else {"hard_negative_weight": self.hard_negative_weight}
        texts = [kind.template.text for kind in self.prompted]
        views = {"templates": texts, "template_denoising": self.prompted[0].denoised} if texts else {}
        found = super().describe()
        if self.mlm_weight is not None:
            found["formula"] += "; plus mlm_weight times the mean over hidden tokens of -log P(token | the others)"
            found["networks"] = ", and ".join(filter(None, (self.networks, "a head over the vocabulary")))
        return found | {"mask_duplicates": self.mask_duplicates} | weight | views | self._masked_settings()

    def described(self) -> list[Any]:
        return self.prompted[:1]

    @property
    def prompted(self) -> list[Prompted]:
        """Those of the views that stand in templates of their own."""
        return [] if isinstance(self.views, int) else [kind for kind in self.views if isinstance(kind, Prompted)]

    def beside(self) -> list[Any]:
        """The frozen networks."""
        return [one.model for one in self.reference.each] if self.reference else []

    def memory(self) -> dict[str, Any]:
        frozen = sum(p.numel() * p.element_size() for model in self.beside() for p in model.parameters())
        masked = {} if self.mlm_weight is None else {"passes": 2, "guesses": self.mlm_probability}
        return super().memory() | {"frozen": frozen} | masked
