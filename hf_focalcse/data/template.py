"""A template around a text: what is embedded is the whole, and where it is too long, only the text is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UserError
from .views import UNCUT, cut_texts, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLACE = "{text}"
PROMPTEOL = "prompteol"
NAMED = {PROMPTEOL: 'This sentence : "{text}" means in one word:"'}  # arXiv 2307.16645
BORDERS = 2  # tokens that may be more where a template and a text meet than in both apart


@dataclass(frozen=True)
class Template:
    """What stands before and after every text. name: "prompteol", or the template itself, with {text} in it.

    The named one embeds a text with the punctuation that its authors evaluate with, see `punctuated`; training and
    templates that are written out leave texts as they are.
    """

    name: str

    @classmethod
    def of(cls, name: str) -> Template:
        """
        Raises:
            UserError: it does not hold {text} once, or nothing but that.
        """
        if name not in NAMED and (name.count(PLACE) != 1 or name.strip() == PLACE):
            raise UserError(
                f"--prompt_template is {name!r}; it must hold {PLACE} once, the place of the text between words of "
                f"its own, or be {', '.join(NAMED)}"
            )
        return cls(name)

    @property
    def text(self) -> str:
        """The template, with {text} in it."""
        return NAMED.get(self.name, self.name)

    def tokens(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """How many tokens it may take beside those of a text."""
        return len(token_ids(tokenizer, [self.text.replace(PLACE, "")], UNCUT)[0]) + BORDERS

    def fill(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str],
        limit: int,
        split_special_tokens: bool | None = None,
        evaluated: bool = False,
    ) -> list[str]:
        """B texts -> B filled templates, each text cut to ``limit`` tokens.

        evaluated: whether the texts are embedded, and not trained on.

        Raises:
            UserError: the tokenizer cannot say where a token ends in its text.
        """
        if evaluated and self.name == PROMPTEOL:
            texts = [punctuated(text) for text in texts]
        before, after = self.text.split(PLACE)
        return [before + text + after for text in cut_texts(tokenizer, texts, limit, split_special_tokens)]


def punctuated(text: str) -> str:
    """A text as PromptEOL's evaluation has it: with a full stop at its end, and without double quotation marks."""
    if text and text[-1] not in ".?\"'":
        text += "."
    text = text.replace('"', "'")
    return text[:-1] + "." if text.endswith("?") else text


def as_read(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    limit: int,
    prompt: str = "",
    template: Template | None = None,
    split_special_tokens: bool | None = None,
    evaluated: bool = False,
) -> tuple[list[str], int]:
    """(B texts with the prompt before each or within the template, the number of tokens at which they are still to be
    cut). limit: tokens that are kept of a text, of a prompt before it and of special ones; or, within a template, of
    the text alone."""
    if template is None:
        return [prompt + text for text in texts], limit
    return template.fill(tokenizer, texts, limit, split_special_tokens, evaluated), UNCUT
