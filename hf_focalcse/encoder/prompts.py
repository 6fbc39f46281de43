"""Which prompt stands before a text: the one asked for, or the one that the encoder's folder makes its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..data.views import UNCUT, token_ids
from ..errors import UserError, suggest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def choose_prompt(
    prompts: Mapping[str, str], default: str | None, prompt: str | None = None, prompt_name: str | None = None
) -> str:
    """The text of the prompt: ``prompt`` itself, else the one called ``prompt_name``, else the default one.

    prompts: name -> text. default: the name of the one that is used where none is asked for; None: none is.

    Raises:
        UserError: both are given, or there is no prompt of that name.
    """
    if prompt is not None and prompt_name is not None:
        raise UserError(f"prompt {prompt!r} and prompt_name {prompt_name!r} are both given; give one of them")
    if prompt is not None:
        return prompt
    name = default if prompt_name is None else prompt_name
    if name is None:
        return ""
    if name not in prompts:
        there = ", ".join(map(repr, prompts)) or "none"
        raise UserError(
            f"there is no prompt called {name!r}; it has {there}{suggest(str(name), prompts)}; give the text itself "
            "(prompt) in place of its name"
        )
    return prompts[name]


def add_prompt(prompts: Mapping[str, str], prompt: str) -> tuple[dict[str, str], str | None]:
    """(prompts, the name of the default one) of an encoder that embeds with ``prompt`` from now on; "" is none."""
    if not prompt:
        return dict(prompts), None
    for name, text in prompts.items():
        if text == prompt:
            return dict(prompts), name
    return {**prompts, "default": prompt}, "default"


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> int:
    """How many tokens at the beginning of a text belong to a prompt.

    As sentence-transformers counts them: those of the prompt alone, without a special token at its end."""
    if not prompt:
        return 0
    ids = token_ids(tokenizer, [prompt], UNCUT)[0]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)
