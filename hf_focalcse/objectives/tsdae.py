"""TSDAE: a decoder rebuilds the sentence from the vector of what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..data.views import Views
from ..encoder.chunks import checkpointed
from ..errors import UserError
from ..losses.base import Pairs
from .base import Batch, Objective
from .decoder import SentenceDecoder
from .masking import IGNORED, cross_entropy_sum, draw, masked_head, special_tokens
from .pairs import ranks, sum_of_ranks


class TSDAE(Objective, name="tsdae"):
    """Words are deleted, the rest is embedded, and a decoder that sees nothing but the vector rebuilds the whole
    sentence, token after token (Wang et al. 2021): the mean of -log P(token | tokens before it, vector) over all
    tokens of the batch.

    The decoder is the encoder, whose weights both share, with attention to the vector and the checkpoint's head for
    masked words, or a new one. Both are kept in checkpoints and not published. What is deleted follows from the seed,
    the step and the text alone, so that it differs from epoch to epoch and not with the number of processes.

    Args:
        deletion_ratio: the share of the words that is deleted; one word always stays.
        delete_tokens: delete single tokens, not whole words, for text without spaces between words. Words are known
            where the tokenizer marks their parts or their beginnings.
    """

    projects = False
    formula = "mean over tokens of -log P(token | tokens before it, vector of the sentence with words deleted)"
    networks = "a head over the vocabulary, and a decoder's attention to the vector; the rest of it is the encoder"
    paper = "https://arxiv.org/abs/2104.06979"
    citation = """@inproceedings{wang2021tsdae,
  title = {{TSDAE}: Using Transformer-based Sequential Denoising Auto-Encoder for Unsupervised Sentence Embedding
           Learning},
  author = {Wang, Kexin and Reimers, Nils and Gurevych, Iryna},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP},
  year = {2021}
}"""

    def __init__(self, *, deletion_ratio: float = 0.6, delete_tokens: bool = False):
        super().__init__()
        if not 0 < deletion_ratio < 1:
            raise UserError(f"deletion_ratio is {deletion_ratio}; it must be above 0 and below 1 (0.6 is usual)")
        self.deletion_ratio, self.delete_tokens = deletion_ratio, delete_tokens
        self._model: list[Any] = []  # in a list, so that the encoder is no part of this module

    def collator(self, tokenizer: Any, max_seq_length: int, seed: int) -> Callable[[list[Any]], dict[str, Tensor]]:
        return Views(tokenizer, max_seq_length, 1, seed)

    def attach(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        size = model.config.hidden_size
        if model.get_embedding_dimension() != size:
            raise UserError(
                f"--objective tsdae has the layers of {size} numbers read the vector, and this encoder embeds in "
                f"{model.get_embedding_dimension()}; use a pooler of one layer, such as cls"
            )
        self._model[:] = [model]
        weights = next(model.parameters())
        model.set_pooling(model.pooler_name, "none")  # the vector that is published is the one that is read
        self.decoder = SentenceDecoder(model).to(weights)
        self.head = masked_head(model).to(weights)
        vocabulary = model.config.vocab_size
        self.special = special_tokens(model.tokenizer, vocabulary)  # no buffers: the tokenizer has them in every run
        self.continues = continuing(model.tokenizer, vocabulary) & (not self.delete_tokens)
        self.pad_id = model.tokenizer.pad_token_id

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Pairs | None]:
        ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]  # (B, L)
        left = self.left(ids, mask, batch["text_ids"], batch["seed"])
        some, short = compacted(ids, left, self.pad_id)
        vectors = model(input_ids=some.unsqueeze(1), attention_mask=short.unsqueeze(1))[:, 0]  # (B, D)
        labels = ids[:, 1:].masked_fill(mask[:, 1:] == 0, IGNORED)  # (B, L - 1)
        if "real" in batch:  # all ranks run the last batch whole (FSDP2 and ZeRO-3 count on it)
            labels = labels.masked_fill(~batch["real"].unsqueeze(1), IGNORED)
        chunk = self._model[0].chunk_size
        total: Any = 0.0
        for rows in torch.arange(len(ids), device=ids.device).split(chunk or max(len(ids), 1)):
            parts = ids[rows, :-1], mask[rows, :-1], vectors[rows], labels[rows]
            total = total + (checkpointed(self._sum, *parts) if chunk else self._sum(*parts))
        found: Tensor = total * (ranks() / max(sum_of_ranks(int((labels != IGNORED).sum()), ids.device), 1))
        return found, None

    def left(self, ids: Tensor, mask: Tensor, text_ids: Tensor, seed: int) -> Tensor:
        """Which tokens (B, L) are left: the special ones, and those of the words that are not deleted."""
        special = self.special.to(ids.device)[ids] & (mask == 1)
        ordinary = (mask == 1) & ~special
        words = words_of(self.continues.to(ids.device)[ids], ordinary)
        drawn = draw(seed, text_ids, mask, len(self.special))
        chances = drawn.random.gather(1, words).masked_fill(~ordinary, -1.0)
        return special | kept_words(drawn.chosen, self.deletion_ratio, words, ordinary, chances.argmax(1))

    def _sum(self, ids: Tensor, mask: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        states = self.decoder(ids, mask, vectors)  # (n, L - 1, D)
        wanted = labels != IGNORED
        return cross_entropy_sum(self.head(states[wanted]), labels[wanted])

    def memory(self) -> dict[str, Any]:
        return super().memory() | {"passes": 2, "guesses": 1.0}


def kept_words(uniform: Tensor, ratio: float, words: Tensor, ordinary: Tensor, fallback: Tensor) -> Tensor:
    """Which tokens (B, L) stay: those of words whose number of ``uniform`` is above ``ratio``; where a row has no such
    word, that of the token ``fallback`` (B,).

    words: the place of the first token of each token's word, see `words_of`. ordinary: tokens that belong to words.
    """
    kept = (uniform.gather(1, words) > ratio) & ordinary
    none = ~kept.any(1, keepdim=True)
    return kept | (none & ordinary & (words == words.gather(1, fallback.unsqueeze(1))))


def words_of(continues: Tensor, ordinary: Tensor) -> Tensor:
    """For each token (B, L) the place of the first token of its word.

    continues: tokens that go on with the word before, if an ordinary token is there; ordinary: tokens of words.
    """
    behind = torch.zeros_like(ordinary)
    behind[:, 1:] = ordinary[:, :-1]
    within = continues & ordinary & behind
    places = torch.arange(within.shape[1], device=within.device).expand_as(within)
    return places.masked_fill(within, 0).cummax(1).values


def compacted(ids: Tensor, left: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """The tokens that are left (B, L), moved to the beginning of their row and padded to the longest: ids, mask."""
    order = (~left).int().argsort(dim=1, stable=True)
    lengths = left.sum(1, keepdim=True)
    mask = torch.arange(max(int(lengths.max()), 1), device=ids.device) < lengths
    moved = ids.gather(1, order)[:, : mask.shape[1]]
    return moved.masked_fill(~mask, pad_id), mask.long()


def continuing(tokenizer: Any, vocabulary: int) -> Tensor:
    """Which tokens of a vocabulary go on with a word: those with "##" in front, or those without the mark of a
    beginning, where the tokenizer has one of these; else none."""
    names = {i: name for name, i in tokenizer.get_vocab().items() if i < vocabulary}
    found = torch.zeros(vocabulary, dtype=torch.bool)
    if any(name.startswith("##") for name in names.values()):
        found[[i for i, name in names.items() if name.startswith("##")]] = True
        return found
    for mark in ("Ġ", "▁"):
        if any(name.startswith(mark) for name in names.values()):
            found[[i for i, name in names.items() if not name.startswith(mark)]] = True
            return found
    return found
