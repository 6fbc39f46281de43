"""PromptBERT's views: a text in a template of each view's own, whose mask token stands for the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import UserError
from .template import MASK, Template
from .views import View

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompted(View):
    """A text in a template, whose mask token is pooled (Jiang et al. 2022, PromptBERT).

    Args:
        template: holds {mask}. The first view's is the one that texts are embedded with afterwards.
        denoised: whether the state of the mask token in the same template without the text, at the positions that
            this text leaves it, is subtracted before the projection (section 3.3): what the template alone says is
            taken out.

    Raises:
        UserError: the template holds no mask token.
    """

    formula = "each view reads the text in a template of its own, pooled at the mask token"
    paper = "https://arxiv.org/abs/2201.04337"
    citation = """@inproceedings{jiang2022promptbert,
  title = {{PromptBERT}: Improving {BERT} Sentence Embeddings with Prompts},
  author = {Jiang, Ting and Jiao, Jian and Huang, Shaohan and Zhang, Zihan and Wang, Deqing and Zhuang, Fuzhen and
            Wei, Furu and Huang, Haizhen and Deng, Denvy and Zhang, Qi},
  booktitle = {Conference on Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2022}
}"""

    denoised: bool = True  # type: ignore[misc]

    def __post_init__(self) -> None:
        if not isinstance(self.template, Template) or not self.template.masked:
            text = getattr(self.template, "text", self.template)
            raise UserError(f"a view of prompts pools the mask token, and its template is {text!r}; put {MASK} in it")

    def text_tokens(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]) -> Tensor:
        """Ids of B views -> how many of them are of the text (B,), int64."""
        around = len(self.template.empty(tokenizer)[0])
        return torch.tensor([max(len(row) - around, 0) for row in ids])


def shifted_positions(length: int, prefixes: Tensor, text_tokens: Tensor) -> Tensor:
    """Of R templates without their texts -> the positions, from 0, of their ``length`` tokens, (R, length): those
    behind the first ``prefixes`` (R,) tokens are where a text of so many tokens (R,) leaves them."""
    places = torch.arange(length, device=text_tokens.device)
    return places + (places >= prefixes.unsqueeze(1)) * text_tokens.unsqueeze(1)
