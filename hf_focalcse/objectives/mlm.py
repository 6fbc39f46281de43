"""Masked language modelling as an objective of its own: the encoder learns the words of a domain before it embeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from ..data.views import Views
from ..losses.base import Pairs
from .base import Batch, Objective
from .masking import MaskedTokens


class MaskedLanguageModel(Objective, name="mlm"):
    """Tokens are hidden and guessed (Devlin et al. 2019): the mean cross entropy over all hidden tokens.

    Of the chosen tokens 80 % become the mask token, 10 % any token, and 10 % stay. Special tokens are never chosen.
    The head is that of the checkpoint where it has one. It is kept in checkpoints and not published. Sentence vectors
    get worse by this alone: train a contrastive objective from the result.

    Args:
        mask_probability: the share of the tokens, or of the words, that is to be guessed.
        whole_words: hide words as a whole, where the tokenizer marks the parts of a word by "##".
    """

    projects = False
    formula = "mean over the hidden tokens of -log P(token | sentence with tokens hidden)"
    networks = "a head over the vocabulary"
    paper = "https://arxiv.org/abs/1810.04805"
    citation = """@inproceedings{devlin2019bert,
  title = {{BERT}: Pre-training of Deep Bidirectional Transformers for Language Understanding},
  author = {Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina},
  booktitle = {North American Chapter of the Association for Computational Linguistics (NAACL)},
  year = {2019}
}"""

    def __init__(self, *, mask_probability: float = 0.15, whole_words: bool = True):
        super().__init__()
        self.tokens = MaskedTokens(mask_probability, whole_words)
        self.mask_probability, self.whole_words = mask_probability, whole_words

    def collator(self, tokenizer: Any, max_seq_length: int, seed: int) -> Callable[[list[Any]], dict[str, Tensor]]:
        return Views(tokenizer, max_seq_length, 1, seed)

    def attach(self, model: Any, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.tokens.attach(model)
        for part in (model.projection_linear, model.tail):  # nothing is pooled, so they would get no gradient
            part.requires_grad_(False)

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, Pairs | None]:
        return self.tokens.loss(batch), None

    def memory(self) -> dict[str, Any]:
        return super().memory() | {"guesses": self.mask_probability}
