"""A template around a text: what is embedded is the whole, and where it is too long, only the text is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UserError
from .views import UNCUT, cut_texts, spans_of, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLACE, MASK = "{text}", "{mask}"  # of a text, and of the tokenizer's mask token
PROMPTEOL = "prompteol"
PROMPTBERT = ("promptbert", "promptbert-2")  # of the first and of the second view
PROMPTROBERTA = ("promptroberta", "promptroberta-2")


@dataclass(frozen=True)
class Named:
    """A published template, and the punctuation that its authors evaluate with, see `punctuated`."""

    text: str
    plain_quotes: bool = False


NAMED = {
    PROMPTEOL: Named('This sentence : "{text}" means in one word:"', plain_quotes=True),  # arXiv 2307.16645
    PROMPTBERT[0]: Named('This sentence of "{text}" means {mask}.'),  # arXiv 2201.04337, with those that follow
    PROMPTBERT[1]: Named('This sentence : "{text}" means {mask}.'),
    PROMPTROBERTA[0]: Named("This sentence : ' {text} ' means {mask}."),
    PROMPTROBERTA[1]: Named("The sentence : ' {text} ' means {mask}."),
}
BORDERS = 2  # tokens that may be more where a template and a text meet than in both apart
PROBE = "a"  # a text of one token


@dataclass(frozen=True)
class Template:
    """What stands before and after every text. name: a key of `NAMED`, or the template itself, with {text} in it and
    perhaps, behind that, {mask} in the place of the tokenizer's mask token.

    A named one embeds a text with the punctuation that its authors evaluate with, see `punctuated`; training and
    templates that are written out leave texts as they are.
    """

    name: str

    @classmethod
    def of(cls, name: str) -> Template:
        """
        Raises:
            UserError: it does not hold {text} once, or nothing but that, or {mask} twice or before {text}.
        """
        if name not in NAMED and (name.count(PLACE) != 1 or name.strip() == PLACE):
            raise UserError(
                f"--prompt_template is {name!r}; it must hold {PLACE} once, the place of the text between words of "
                f"its own, or be {', '.join(NAMED)}"
            )
        found = cls(name)
        if found.text.count(MASK) > 1 or MASK in found.text.partition(PLACE)[0]:
            raise UserError(
                f"--prompt_template is {name!r}; {MASK} may stand in it once, behind {PLACE}, so that no text can be "
                "taken for it"
            )
        return found

    @property
    def text(self) -> str:
        """The template, with {text} in it, and {mask} if it has one."""
        return NAMED[self.name].text if self.name in NAMED else self.name

    @property
    def before(self) -> str | None:
        """What stands before a text, if that is all that the template does; else None."""
        alone = self.name not in NAMED and self.text.endswith(PLACE)
        return self.text.removesuffix(PLACE) if alone else None

    @property
    def masked(self) -> bool:
        """Whether it holds a mask token."""
        return MASK in self.text

    def around(self, tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
        """What stands before and after a text that this tokenizer reads.

        Raises:
            UserError: it is to hold a mask token, and the tokenizer has none.
        """
        if self.masked and tokenizer.mask_token is None:
            raise UserError(
                f"the template {self.text!r} holds a mask token, and the tokenizer {type(tokenizer).__name__} has "
                "none; give a template without {mask}, or an encoder that was trained with masked tokens"
            )
        before, _, after = self.text.replace(MASK, tokenizer.mask_token or "").partition(PLACE)
        return before, after

    def tokens(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """How many tokens it may take beside those of a text."""
        return len(token_ids(tokenizer, ["".join(self.around(tokenizer))], UNCUT, **self.reading)[0]) + BORDERS

    def empty(self, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], int]:
        """The ids of the template without a text, and how many of them stand before the text, special ones included.

        Raises:
            UserError: the tokenizer cannot say where a token ends in its text.
        """
        before, after = self.around(tokenizer)
        ids, spans = spans_of(tokenizer, [before + PROBE + after], add_special_tokens=True, **self.reading)
        start, end = len(before), len(before + PROBE)
        of_text = [first < end and last > start for first, last in spans[0]]
        return [one for one, inside in zip(ids[0], of_text, strict=True) if not inside], of_text.index(True)

    @property
    def reading(self) -> dict[str, bool]:
        """How `token_ids` reads a filled template, where texts hold no special tokens."""
        return {"split_special_tokens": not self.masked}

    def fill(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str],
        limit: int,
        split_special_tokens: bool | None = None,
        evaluated: bool = False,
    ) -> list[str]:
        """B texts -> B filled templates, each text cut to ``limit`` tokens.

        evaluated: whether the texts are embedded, and not trained on. split_special_tokens: as in `token_ids`; where
        the template holds a mask token, what looks like a special token in a text is taken apart by a space instead.

        Raises:
            UserError: the tokenizer cannot say where a token ends in its text, or it has no mask token.
        """
        if evaluated and self.name in NAMED:
            texts = [punctuated(text, NAMED[self.name].plain_quotes) for text in texts]
        before, after = self.around(tokenizer)
        if split_special_tokens and self.masked:
            texts = [apart(text, tokenizer.all_special_tokens) for text in texts]
        return [before + text + after for text in cut_texts(tokenizer, texts, limit, split_special_tokens)]


def apart(text: str, special: Sequence[str]) -> str:
    """A text in which no special token can be read any more: each has a space behind its first character."""
    for token in special:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def punctuated(text: str, plain_quotes: bool) -> str:
    """A text as the evaluations of PromptBERT and PromptEOL have it: with a full stop at its end; and, where
    ``plain_quotes`` is set, as PromptEOL's has it: without double quotation marks, nor a question mark at its end."""
    if text and text[-1] not in ".?\"'":
        text += "."
    if not plain_quotes:
        return text
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
