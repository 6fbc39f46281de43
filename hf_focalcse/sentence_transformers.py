"""The losses of this package as loss modules for sentence-transformers' `SentenceTransformerTrainer`.

    trainer = SentenceTransformerTrainer(model=model, train_dataset=sentences, loss=FocalInfoNCELoss(model, m=0.3))

A data set with one text column trains as SimCSE does: each sentence is embedded twice, and dropout makes its two views
differ. With two columns the second holds the positives, with more the others hold hard negatives. Nothing of
sentence-transformers is imported here: a loss only calls the model that it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .data.views import text_id
from .errors import UserError
from .losses import LOSSES, build_loss, settings_of
from .losses.base import Pairs
from .objectives.pairs import NEGATIVES, gather_rows, make_pairs

__all__ = ["DCLRLoss", "FocalInfoNCELoss", "InfoNCELoss"]
COMMON = ("mask_duplicates", "negatives", "matryoshka_dims", "matryoshka_weights")  # arguments of all losses
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

    Raises:
        UserError: an unknown setting or a value that the loss does not take, or a loss that needs a frozen reference.
    """

    loss: ClassVar[str]  # the name of the loss in `build_loss`
    defaults: ClassVar[Mapping[str, Any]] = {}  # settings whose default differs here

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        keyword, own = inspect.Parameter.KEYWORD_ONLY, inspect.signature(PairsLoss.__init__).parameters
        settings = [
            setting.replace(kind=keyword, default=cls.defaults.get(name, setting.default))
            for name, setting in settings_of(LOSSES[cls.loss]).items()
        ]
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what help() and editors show
            [own["model"], *(own[name] for name in COMMON), *settings]
        )

    def __init__(
        self,
        model: nn.Module,
        *,
        mask_duplicates: bool | None = None,
        negatives: str = "global",
        matryoshka_dims: Sequence[int] | None = None,
        matryoshka_weights: Sequence[float] | None = None,
        **settings: Any,
    ):
        super().__init__()
        if not isinstance(model, nn.Module):
            raise UserError(
                f"{type(self).__name__} takes the SentenceTransformer that is trained as its first argument, not "
                f"{model!r}; settings are given by name, such as temperature=0.05"
            )
        if negatives not in NEGATIVES:
            raise UserError(f"negatives is {negatives!r}; it must be one of {', '.join(NEGATIVES)}")
        self.model = model
        sizes: dict[str, Any] = {"matryoshka_dims": matryoshka_dims, "matryoshka_weights": matryoshka_weights}
        self.criterion = build_loss(self.loss, **{**self.defaults, **settings, **sizes})
        if self.criterion.needs_reference:
            raise UserError(
                f"{type(self).__name__} has no frozen encoder to compare with, which {self.criterion} needs; give "
                "weighting='self' or 'none', or train with FocalCSETrainer(reference=…)"
            )
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
        columns = [dict(features) for features in sentence_features]
        again = len(columns) == 1
        columns += [dict(features) for features in columns * again]  # a copy, since the model writes into it
        ids = text_ids(columns[0], type(self).__name__) if self.mask_duplicates else None  # (B,)
        embeddings = torch.stack([self.model(features)["sentence_embedding"] for features in columns], 1)  # (B, V, D)
        if again and self.training and embeddings.requires_grad and torch.equal(embeddings[:, 0], embeddings[:, 1]):
            self._warn_once(
                "both views of every sentence are equal, so nothing is learnt from the positives: every dropout rate "
                "of the model is 0; set its dropout to 0.1, or give a data set with a second column"
            )
        return self.compute_loss_from_embeddings(embeddings, ids)

    def compute_loss_from_embeddings(self, embeddings: Tensor, ids: Tensor | None = None) -> Tensor:
        """Embeddings (B, V, D), anchors first, and numbers (B,) that are equal where the texts are -> a scalar."""
        pairs: Pairs = make_pairs(embeddings, ids, None, self.negatives, self._seed(embeddings))
        loss: Tensor = self.criterion(pairs)
        return loss

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
        return config | {"mask_duplicates": self.mask_duplicates, "negatives": self.negatives}

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
    """DCLR (Zhou et al. 2022), see `hf_focalcse.losses.dclr`, without its frozen reference: by default the encoder as
    it is now says which negatives are false (``weighting="self"``)."""

    loss = "dclr"
    defaults: ClassVar[Mapping[str, Any]] = {"weighting": "self"}


def text_ids(features: Mapping[str, Any], loss: str) -> Tensor:
    """A number for each text of a column, (B,) int64, equal where the tokens are; padding does not count.

    Raises:
        UserError: the column does not hold one row of tokens a text.
    """
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if ids is None or mask is None or ids.dim() != 2 or ids.shape != mask.shape:
        raise UserError(
            f"{loss} compares the tokens of texts to leave equal ones out, and this model's inputs have none row by "
            "row; give mask_duplicates=False"
        )
    rows = zip(ids.tolist(), mask.tolist(), strict=True)
    texts = [" ".join(str(token) for token, real in zip(*row, strict=True) if real) for row in rows]
    return torch.tensor([text_id(text) for text in texts], device=ids.device)
