"""Whether a tokenizer knows the words of a text: how many become its token for unknown ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.views import UNCUT, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOOKED_AT = 2_000  # sentences, evenly spaced, in about 0.3 s
CHARACTERS = 1_000  # of each: training reads the beginning of a long text alone
EXAMPLES = 3
MANY = 0.05  # a share of unknown tokens from which on an encoder is hardly made for a text


@dataclass(frozen=True)
class Unread:
    """What a tokenizer does not know of some sentences.

    sentences: how many were looked at. tokens: of these; unknown: of those. lost: the sentences of which not a single
    token is known, so that nothing tells one from another. examples: unknown words.
    """

    sentences: int
    tokens: int
    unknown: int
    lost: int
    examples: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    @property
    def alarming(self) -> bool:
        """Whether another encoder should be taken."""
        return self.lost > 0 or self.share >= MANY

    def __str__(self) -> str:
        said = (
            f"the tokenizer does not know {self.unknown:,} of {self.tokens:,} tokens ({self.share:.1%}) in "
            f"{self.sentences:,} sentences"
        )
        if self.examples:
            said += f", for instance {', '.join(map(repr, self.examples))}"
        if self.lost:
            said += (
                f"; {self.lost:,} of the sentences hold nothing that it knows, so that they look alike to the encoder"
            )
        return said + ("; take an encoder whose tokenizer reads this language or script" if self.alarming else "")


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id that the vocabulary's model gives for what it does not know; None: it knows every character.

    Not ``tokenizer.unk_token_id``, which is the end token in some classes.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.unk_token_id  # type: ignore[no-any-return]
    model = json.loads(backend.to_str())["model"]
    if model.get("byte_fallback"):
        return None
    if "unk_id" in model:
        return None if model["unk_id"] is None else int(model["unk_id"])
    token = model.get("unk_token")
    return None if token is None else backend.token_to_id(token)


def count_unread(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Unread:
    """What a tokenizer does not know of these texts, special tokens aside."""
    unknown = unknown_id(tokenizer)
    rows = token_ids(tokenizer, texts, UNCUT, split_special_tokens=True, add_special_tokens=False)
    counts = [row.count(unknown) if unknown is not None else 0 for row in rows]
    words: dict[str, None] = {}
    for text, count in zip(texts, counts, strict=True):
        if count and len(words) < EXAMPLES:
            found = text.split()
            ids = token_ids(tokenizer, found, UNCUT, split_special_tokens=True, add_special_tokens=False)
            words |= dict.fromkeys(word[:40] for word, row in zip(found, ids, strict=True) if unknown in row)
    return Unread(
        len(rows),
        sum(map(len, rows)),
        sum(counts),
        sum(count == len(row) for row, count in zip(rows, counts, strict=True)),
        tuple(words)[:EXAMPLES],
    )


def find_unread(tokenizer: PreTrainedTokenizerBase, sentences: Any) -> Unread | None:
    """`count_unread` of rows with a ``text``, of many an evenly spaced sample; None where everything is known."""
    chosen = np.unique(np.linspace(0, len(sentences) - 1, min(len(sentences), LOOKED_AT)).round().astype(np.int64))
    found = count_unread(tokenizer, [next(iter(sentences[int(i)].values()))[:CHARACTERS] for i in chosen])
    return found if found.unknown or found.lost else None
