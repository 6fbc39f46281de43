"""The losses of this package as loss modules for sentence-transformers' `SentenceTransformerTrainer`.

    trainer = SentenceTransformerTrainer(model=model, train_dataset=sentences, loss=FocalInfoNCELoss(model, m=0.3))

A data set with one text column trains as SimCSE does: each sentence is embedded twice, and dropout makes its two views
differ. With two columns the second holds the positives, with more the others hold hard negatives. Nothing of
sentence-transformers is imported here: a loss only calls the model that it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .data.views import text_id
from .errors import UserError
from .losses import LOSSES, build_loss, settings_of
from .losses.base import Pairs
from .objectives.pairs import NEGATIVES, gather_rows, make_pairs
from .objectives.reference import joined

__all__ = ["DCLRLoss", "FocalInfoNCELoss", "InfoNCELoss", "RankCSELoss"]
COMMON = ("mask_duplicates", "negatives", "matryoshka_dims", "matryoshka_weights")  # arguments of all losses
OTHER_NAMES = {  # of settings of the losses of sentence-transformers -> what they are here
    "scale": "it is 1/temperature; give temperature=0.05 for scale=20",
    "similarity_fct": "it compares by cosine; leave it out",
    "gather_across_devices": "negatives are those of all processes unless negatives='local'; leave it out",
    "mini_batch_size": "there is no cached form; FocalCSETrainer has chunk_size for batches that do not fit",
    "guide": "a frozen encoder is given to DCLRLoss or RankCSELoss as reference",
}
EQUAL_IN_TRAINING = (
    "both views of every sentence are equal, so nothing is learnt from the positives: every dropout rate of the model "
    "is 0; set its dropout to 0.1, or give a data set with a second column"
)
EQUAL_IN_EVALUATION = (
    "without dropout both views of every sentence are equal, so that the loss of an eval_dataset with one column says "
    "only how far apart different sentences lie; judge by an evaluator, or give a second column"
)
logger = logging.get_logger(__name__)


class PairsLoss(nn.Module):
    """Base of the losses below: the embeddings of a batch -> `Pairs` -> a loss of `build_loss`.

    With several processes the candidates of all of them are gathered, with the exact gradient of the mean over all
    anchors; sentence-transformers' own ``gather_across_devices`` has no counterpart here.

    Args:
        model: the `SentenceTransformer` that is trained.
        mask_duplicates: rows whose first texts give the same tokens are left out of each other's negatives; None
            leaves it to the loss (focal does).
        negatives: "global", those of all processes, or "local".
        matryoshka_dims, matryoshka_weights: the loss is summed over these sizes of the vectors, see
            `hf_focalcse.losses.matryoshka`; ``MatryoshkaLoss`` of sentence-transformers may be wrapped around instead.
        settings: of the loss, by name, see `hf_focalcse.losses`.

    A loss that compares with frozen encoders takes them as ``reference``, see `Reference`.

    Raises:
        UserError: an unknown setting or a value that the loss does not take, or a frozen encoder is missing or unused.
    """

    loss: ClassVar[str]  # the name of the loss in `build_loss`
    compares: ClassVar[bool] = False  # whether it may take a reference
    alone: ClassVar[Mapping[str, Any]] = {}  # settings whose default differs where there is no reference

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        keyword, own = inspect.Parameter.KEYWORD_ONLY, inspect.signature(PairsLoss.__init__).parameters
        settings = [
            setting.replace(kind=keyword, default=cls.alone.get(name, setting.default))
            for name, setting in settings_of(LOSSES[cls.loss]).items()
        ]
        common = (*COMMON, "reference") if cls.compares else COMMON
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what help() and editors show
            [own["model"], *(own[name] for name in common), *settings]
        )

    def __init__(
        self,
        model: nn.Module,
        *,
        mask_duplicates: bool | None = None,
        negatives: str = "global",
        matryoshka_dims: Sequence[int] | None = None,
        matryoshka_weights: Sequence[float] | None = None,
        reference: nn.Module | Sequence[nn.Module] | None = None,
        **settings: Any,
    ):
        super().__init__()
        if not isinstance(model, nn.Module):
            raise UserError(
                f"{type(self).__name__} takes the SentenceTransformer that is trained as its first argument, not "
                f"{model!r}; settings are given by name, such as temperature=0.05"
            )
        if hasattr(getattr(model, "config", None), "focal_cl"):
            raise UserError(
                f"{type(self).__name__} is for a SentenceTransformer, and the model is an encoder of load_model: give "
                "FocalCSETrainer that, or load its folder with SentenceTransformer(folder)"
            )
        for name in (name for name in settings if name in OTHER_NAMES):
            raise UserError(f"{type(self).__name__} has no {name}: {OTHER_NAMES[name]}")
        if negatives not in NEGATIVES:
            raise UserError(f"negatives is {negatives!r}; it must be one of {', '.join(NEGATIVES)}")
        self.model = model
        sizes: dict[str, Any] = {"matryoshka_dims": matryoshka_dims, "matryoshka_weights": matryoshka_weights}
        frozen = [] if reference is None else list(reference) if isinstance(reference, (list, tuple)) else [reference]
        self.criterion = build_loss(self.loss, **{**({} if frozen else self.alone), **settings, **sizes})
        self._check_references(frozen)
        self._references = [Reference(one, model) for one in frozen]
        self.mask_duplicates = self.criterion.mask_duplicates if mask_duplicates is None else mask_duplicates
        self.negatives = negatives
        self._said: set[str] = set()

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            sentence_features: what the model takes, one mapping for each text column.
            labels: of the data set, if it has any; not used, which is said once.
        """
        if labels is not None:
            self._warn_once(f"{type(self).__name__} does not use the label column of the data set")
        columns = list(sentence_features)  # not copied: losses around this one write into them
        reference = self._refer(columns)  # (B, D')
        again = len(columns) == 1
        if again and "all_layer_embeddings" in columns[0]:  # of the call before, whose noise would be both views'
            raise UserError(
                f"losses around {type(self).__name__} that look at each layer need both views of a sentence in the "
                "data set: give a second column that repeats the first"
            )
        columns += [dict(features) for features in columns * again]  # a copy, since the model writes into it
        ids = text_ids(columns[0], type(self).__name__) if self.mask_duplicates else None  # (B,)
        embeddings = torch.stack([self.model(features)["sentence_embedding"] for features in columns], 1)  # (B, V, D)
        trains = embeddings.requires_grad
        if again and (self.training or not trains) and torch.equal(embeddings[:, 0], embeddings[:, 1]):
            self._warn_once(EQUAL_IN_TRAINING if trains else EQUAL_IN_EVALUATION)
        return self.compute_loss_from_embeddings(embeddings, ids, reference)

    def compute_loss_from_embeddings(
        self, embeddings: Tensor, ids: Tensor | None = None, reference: Tensor | None = None
    ) -> Tensor:
        """Embeddings (B, V, D), anchors first, numbers (B,) that are equal where the texts are, and vectors (B, D') of
        frozen encoders -> a scalar."""
        pairs: Pairs = make_pairs(embeddings, ids, reference, self.negatives, self._seed(embeddings))
        loss: Tensor = self.criterion(pairs)
        return loss

    def _check_references(self, frozen: Sequence[Any]) -> None:
        name, most = type(self).__name__, self.criterion.references
        if frozen and not self.criterion.needs_reference:
            raise UserError(f"{name} as it is set compares with no frozen encoder; leave reference out")
        if self.criterion.needs_reference and not frozen:
            without = "; or leave weighting out" if self.alone else ""
            raise UserError(
                f"{name} has no frozen encoder to compare with; give reference=SentenceTransformer('…'){without}"
            )
        if len(frozen) > most:
            raise UserError(
                f"{name} compares with at most {most} frozen encoder(s), not {len(frozen)}; leave some out"
            )

    def _refer(self, columns: Sequence[Mapping[str, Any]]) -> Tensor | None:
        """Vectors (B, D') of the frozen encoders for the first column, whose cosines are the mean of theirs."""
        if not self._references:
            return None
        if len(columns) > 2:
            raise UserError(
                f"{type(self).__name__} asks the frozen encoder about one text a row; give a data set with one or two "
                "columns of text"
            )
        vectors = [one.embed(columns[0], type(self).__name__) for one in self._references]
        return vectors[0] if len(vectors) == 1 else joined(vectors, [1 / len(vectors)] * len(vectors))

    def _warn_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning(message)

    def _seed(self, embeddings: Tensor) -> int:
        """For what the loss draws at random: equal on all processes, and another for each batch."""
        sums = gather_rows(embeddings[:, 0].detach().float().sum(-1)).cpu()  # (N,), the same bits everywhere
        return text_id(sums.numpy().tobytes().hex()) & (2**63 - 1)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card."""
        config = {key: value for key, value in self.criterion.config.items() if key != "name"}
        config |= {"mask_duplicates": self.mask_duplicates, "negatives": self.negatives}
        return config | ({"reference": [one.name for one in self._references]} if self._references else {})

    @property
    def citation(self) -> str:
        """BibTeX, for the model card."""
        return self.criterion.citation


class FocalInfoNCELoss(PairsLoss):
    """Focal-InfoNCE (Hou & Li 2023), see `hf_focalcse.losses.focal`: hard negatives weigh more, easy ones less."""

    loss = "focal"


class InfoNCELoss(PairsLoss):
    """InfoNCE with in-batch negatives as in SimCSE (Gao et al. 2021), see `hf_focalcse.losses.infonce`."""

    loss = "infonce"


class DCLRLoss(PairsLoss):
    """DCLR (Zhou et al. 2022), see `hf_focalcse.losses.dclr`. Without a ``reference`` the encoder as it is now says
    which negatives are false (``weighting="self"``)."""

    loss = "dclr"
    compares = True
    alone: ClassVar[Mapping[str, Any]] = {"weighting": "self"}


class RankCSELoss(PairsLoss):
    """RankCSE (Liu et al. 2023), see `hf_focalcse.losses.rankcse`: sentences are ranked as one or two frozen teachers,
    the ``reference``, rank them."""

    loss = "rankcse"
    compares = True


class Reference:
    """A frozen encoder beside the one that is trained; no optimizer and no checkpoint holds it.

    It reads the tokens of the batch where it has the same vocabulary and reads as many, else the text that the
    tokenizer of the trained model makes of them, as the losses of sentence-transformers with a guide do.

    Args:
        encoder: a `SentenceTransformer`. model: the one that is trained.

    Raises:
        UserError: it is something else, or the one that is trained.
    """

    def __init__(self, encoder: Any, model: Any):
        if not all(hasattr(encoder, name) for name in ("requires_grad_", "encode", "tokenizer")):
            raise UserError(
                f"reference is {encoder!r:.60}; give a frozen encoder, reference=SentenceTransformer('…'), or a list "
                "of them"
            )
        if encoder is model:
            raise UserError(
                "reference is the model that is trained, and would change with it; load it again: "
                "reference=SentenceTransformer('…')"
            )
        self.encoder: Any = encoder
        encoder.eval().requires_grad_(False)
        card = getattr(encoder, "model_card_data", None)
        name = getattr(card, "base_model", None) or getattr(getattr(encoder, "config", None), "name_or_path", None)
        self.name = Path(str(name)).name if name and Path(str(name)).exists() else name  # no path on a card
        self.tokenizer = model.tokenizer
        self.same_tokens = (
            hasattr(encoder, "preprocess")
            and encoder.tokenizer.get_vocab() == self.tokenizer.get_vocab()
            and (encoder.max_seq_length or 0) >= (model.max_seq_length or 0)
        )

    @torch.no_grad()
    def embed(self, features: Mapping[str, Any], loss: str) -> Tensor:
        """Features of B texts -> vectors (B, D'), on their device."""
        device = features["input_ids"].device
        self.encoder.to(device)
        if self.same_tokens:
            vectors: Tensor = self.encoder(dict(features))["sentence_embedding"]
            return vectors
        texts = self.tokenizer.batch_decode(token_rows(features, loss), skip_special_tokens=True)
        found: Tensor = self.encoder.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        return found.to(device)


def text_ids(features: Mapping[str, Any], loss: str) -> Tensor:
    """A number for each text of a column, (B,) int64, equal where the tokens are; padding does not count."""
    texts = [" ".join(map(str, row)) for row in token_rows(features, loss)]
    return torch.tensor([text_id(text) for text in texts], device=features["input_ids"].device)


def token_rows(features: Mapping[str, Any], loss: str) -> list[list[int]]:
    """The tokens of each text of a column: of padded rows (B, L), of rows that flash attention takes joined, or of the
    bags of a `StaticEmbedding`.

    Raises:
        UserError: the column holds something else.
    """
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if ids is not None and mask is not None and ids.dim() == 2 and ids.shape == mask.shape:
        rows = zip(ids.tolist(), mask.tolist(), strict=True)
        return [[token for token, real in zip(*row, strict=True) if real] for row in rows]
    if ids is not None and ("cu_seq_lens_q" in features or "offsets" in features):
        first = features["cu_seq_lens_q"][:-1] if "cu_seq_lens_q" in features else features["offsets"]
        return [row.tolist() for row in ids.flatten().tensor_split(first.cpu()[1:].long())]
    raise UserError(
        f"{loss} looks at the tokens of texts, and this model's inputs have none; give mask_duplicates=False, and no "
        "reference"
    )
