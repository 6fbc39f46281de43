"""DiffCSE: beside the contrastive loss, a discriminator has to find replaced words by the sentence's vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging

from ..compat import no_deepspeed_config
from ..encoder.chunks import checkpointed
from ..errors import UserError, first_line
from ..losses.base import Pairs
from .base import Batch
from .contrastive import Contrastive
from .masking import draw_views, hide, special_tokens
from .pairs import ranks, sizes_of_ranks, sum_of_ranks
from .projector import Projector


class DiffCSE(Contrastive, name="diffcse"):
    """loss + rtd_weight x RTD (Chuang et al. 2022). Words of each view are hidden, a frozen generator guesses every
    word, and a discriminator, a second encoder that starts as a copy of the first, tells the guesses that differ from
    the sentence. It reads the sentence's vector in the place of its first token: what the words alone do not tell it,
    the vector must. The gradient of RTD reaches the encoder through that vector, and not the generator.

    While it trains, a projector with batch norm lies between the pooled vector and the loss, in place of the encoder's
    own projection; the published encoder embeds without either. The loss inside may be any but those with a reference.

    Args:
        generator_model: the frozen masked language model, with the encoder's vocabulary: a folder or a Hub id.
        generator_revision: the branch, tag or commit of its Hub id.
        mask_probability: the share of the tokens that is hidden from the generator.
        rtd_weight: lambda, of the discriminator's loss.
        rtd_padding: count padding as words to be told, as in the released code; the width of a batch then matters.
    """

    projects = False
    formula = "plus λ times the mean over tokens of -log P(replaced or not | sentence with guesses, its vector)"
    networks = "a frozen generator of words, a discriminator that began as a copy of the encoder, and a projector"
    paper = "https://arxiv.org/abs/2204.10298"
    citation = """@inproceedings{chuang2022diffcse,
  title = {{DiffCSE}: Difference-based Contrastive Learning for Sentence Embeddings},
  author = {Chuang, Yung-Sung and Dangovski, Rumen and Luo, Hongyin and Zhang, Yang and Chang, Shiyu and
            Soljacic, Marin and Li, Shang-Wen and Yih, Wen-tau and Kim, Yoon and Glass, James},
  booktitle = {North American Chapter of the Association for Computational Linguistics (NAACL)},
  year = {2022}
}"""

    def __init__(
        self,
        *given: Any,
        generator_model: str = "",
        generator_revision: str = "",
        mask_probability: float = 0.3,
        rtd_weight: float = 0.005,
        rtd_padding: bool = False,
        **common: Any,
    ):
        super().__init__(*given, **common)
        if self.criterion.needs_reference or self.of_pairs:
            raise UserError(
                "--objective diffcse takes sentences and a loss without a reference; use --loss infonce or focal, and "
                "--text_column for one column of a table"
            )
        if not generator_model:
            raise UserError(
                "--objective diffcse needs a frozen masked language model with the encoder's vocabulary: name one "
                "with --generator_model, such as distilbert-base-uncased for bert-base-uncased"
            )
        if not 0 < mask_probability < 1:
            raise UserError(f"mask_probability is {mask_probability}; it must be above 0 and below 1 (0.3 is usual)")
        if not 0 < rtd_weight < float("inf"):
            raise UserError(f"rtd_weight is {rtd_weight}; it must be a number above 0 (0.005 is usual)")
        self.generator_model, self.generator_revision = generator_model, generator_revision
        self.mask_probability, self.rtd_weight, self.rtd_padding = mask_probability, rtd_weight, rtd_padding
        self._frozen: list[Any] = []  # the generator, in a list, so that it is no part of this module
        self._model: list[Any] = []
        self._noted: dict[str, Tensor] = {}

    def attach(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        super().attach(model, autocast)
        weights = next(model.parameters())
        self._frozen[:] = [load_generator(self.generator_model, self.generator_revision or None, model)]
        self._model[:] = [model]
        model.set_pooling(model.pooler_name, "none")  # the projector lies in its place
        size, tokenizer = model.config.hidden_size, model.tokenizer
        if model.get_embedding_dimension() != size:
            raise UserError(
                f"--objective diffcse puts the sentence's vector in the place of a token of {size} numbers, and this "
                f"encoder embeds in {model.get_embedding_dimension()}; use a pooler of one layer, such as cls"
            )
        self.projector = Projector(size).to(weights)
        self.discriminator = copy.deepcopy(model.encoder).requires_grad_(True)
        if model.encoder_has_pooler:  # nothing reads it, so it would get no gradient
            attrgetter(model.family.projection)(self.discriminator).requires_grad_(False)
        self.tell = nn.Linear(size, 2).to(weights)
        self.special = special_tokens(tokenizer, model.config.vocab_size)
        self.mask_id, self.pad_id = tokenizer.mask_token_id, tokenizer.pad_token_id

    @property
    def generator(self) -> Any:
        return self._frozen[0]

    def project(self, embeddings: Tensor) -> Tensor:
        """All views of all processes at once, since they share the statistics: (B, V, D) -> (B, V, D)."""
        projected: Tensor = self.projector(embeddings.flatten(0, 1))
        return projected.view_as(embeddings)

    def further(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """lambda times the loss of the discriminator, over the tokens of all processes."""
        ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)  # (B * V, L)
        guessed, labels = replaced(ids, mask, self._guess(batch), self.pad_id)
        counted = torch.ones_like(mask) if self.rtd_padding else mask
        vectors, chunk = embeddings.flatten(0, 1), self._model[0].chunk_size  # (B * V, D)
        total: Any = 0.0
        right: list[Tensor] = []
        most = max(*sizes_of_ranks(len(ids), ids.device), 1)  # all ranks run as many chunks, be it of no rows
        for rows in (slice(first, first + (chunk or most)) for first in range(0, most, chunk or most)):
            parts = guessed[rows], mask[rows], vectors[rows]
            logits = checkpointed(self._tell, *parts) if chunk else self._tell(*parts)  # (R, L, 2)
            total = total + rtd_sum(logits, labels[rows], counted[rows])
            right.append(logits.detach().argmax(-1) == labels[rows])
        found = total * (ranks() / max(sum_of_ranks(int(counted.sum()), ids.device), 1))
        known = torch.cat(right)
        self._noted = {
            "rtd_loss": found.detach(),
            "rtd_accuracy_replaced": known[(labels == 1) & (mask == 1)].float().mean(),
            "rtd_accuracy_kept": known[(labels == 0) & (mask == 1)].float().mean(),
        }
        return self.rtd_weight * found

    @torch.no_grad()
    def _guess(self, batch: Batch) -> Tensor:
        """The generator's most likely token at every place of both views: (B * V, L)."""
        ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
        special = self.special.to(ids.device)[ids] | (mask == 0)
        drawn = draw_views(batch, len(self.special))
        hidden, _ = hide(ids, special, drawn, self.mask_probability, self.mask_id)
        here, there = next(self.generator.parameters()), next(self._model[0].parameters())
        if (here.device, here.dtype) != (there.device, there.dtype):
            self.generator.to(there.device, there.dtype)
        with self._autocast():
            logits = self.generator(input_ids=hidden, attention_mask=mask).logits
        guesses: Tensor = logits.argmax(-1)
        return guesses

    def _tell(self, ids: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """Ids and mask (R, L), vectors (R, D) -> logits (R, L, 2)."""
        family, whole = self._model[0].family, self.discriminator
        path = next(path for path in family.embeddings if hasattr(whole, path.partition(".")[0]))
        added = [] if family.positions is None else [family.positions]
        modules = [attrgetter(one)(whole) for one in (path, *added)]
        firsts = [vectors, *([torch.zeros_like(vectors)] * len(added))]
        handles = [
            module.register_forward_hook(
                lambda module, inputs, hidden, first=first: torch.cat(
                    [first.unsqueeze(1).to(hidden.dtype), hidden[:, 1:]], 1
                )
            )
            for module, first in zip(modules, firsts, strict=True)
        ]
        try:
            states = whole(input_ids=ids, attention_mask=mask, **family.arguments).last_hidden_state
        finally:
            for handle in handles:
                handle.remove()
        logits: Tensor = self.tell(states)
        return logits

    def diagnostics(self, pairs: Pairs) -> dict[str, float]:
        return super().diagnostics(pairs) | {name: value.item() for name, value in self._noted.items()}

    def beside(self) -> list[Any]:
        return [*super().beside(), *self._frozen]

    def memory(self) -> dict[str, Any]:
        found = super().memory()
        return found | {"passes": found["passes"] + 1}


def replaced(ids: Tensor, mask: Tensor, guessed: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """What the discriminator reads, (n, L): the guesses, with the first token and padding as they were; and labels, 1
    where a guess differs from the sentence."""
    found = guessed.masked_fill(mask == 0, pad_id)
    found = torch.cat([ids[:, :1], found[:, 1:]], 1)
    return found, ((found != ids) & (mask == 1)).long()


def rtd_sum(logits: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """The sum over the tokens that count of the cross entropy, of logits (n, L, 2)."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (F.cross_entropy(wide.flatten(0, 1), labels.flatten(), reduction="none") * counted.flatten()).sum()


def load_generator(name: str, revision: str | None, model: Any) -> Any:
    """A frozen masked language model that reads the same ids as an encoder.

    Raises:
        UserError: it cannot be loaded, has no head for masked words, or another vocabulary.
    """
    hub: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        config = AutoConfig.from_pretrained(name, **hub)
        vocabulary = AutoTokenizer.from_pretrained(name, **hub).get_vocab()
        with no_deepspeed_config():  # it is whole in each process, under ZeRO-3 too
            found, info = AutoModelForMaskedLM.from_pretrained(
                name, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **hub
            )
    except (OSError, ValueError) as error:
        raise UserError(
            f"--generator_model {name!r} could not be loaded as a masked language model ({first_line(error)}); name "
            "a folder or a Hub id with such a head and weights as safetensors"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    if vocabulary != model.tokenizer.get_vocab():
        raise UserError(
            f"--generator_model {name!r} has another vocabulary than the encoder, whose token ids it must share; name "
            "a smaller model of the same origin, such as distilbert-base-uncased for bert-base-uncased"
        )
    head = [key for key in info["missing_keys"] if not key.startswith(f"{found.base_model_prefix}.")]
    if head:
        raise UserError(
            f"--generator_model {name!r} has no head that guesses masked words: {min(head)!r} is missing; name a "
            "masked language model"
        )
    return found.eval().requires_grad_(False)
