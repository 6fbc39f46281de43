"""The tokenizer of a checkpoint, or a refusal that says what is wrong with it."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..compat import find_file
from ..errors import UserError, first_line

VOCABULARY_FILES = (  # every folder with a tokenizer has one of these
    *("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)


def load_tokenizer(name_or_path: str, **hub: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint; it pads on the right.

    Raises:
        UserError: there is none, it cannot be read, or it has no padding token.
    """
    # Without a vocabulary transformers makes an empty tokenizer, which reads every word as unknown.
    if not any(find_file(name_or_path, file, **hub) for file in VOCABULARY_FILES):
        raise UserError(
            f"there is no tokenizer in {name_or_path!r}: none of {', '.join(VOCABULARY_FILES)}; copy it from the "
            "encoder that the checkpoint was trained from"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **hub)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"the tokenizer of {name_or_path!r} is damaged ({first_line(error)}); copy it again from the encoder that "
            "the checkpoint was trained from"
        ) from error
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer of {name_or_path!r} has no padding token; set one and save it beside the model"
        )
    tokenizer.padding_side = "right"
    return tokenizer
