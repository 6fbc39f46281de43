"""Whether a tokenizer knows the words of a text: how many become its token for unknown ones, and in which scripts."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .views import UNCUT, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXAMPLES = 3
SCRIPTS = 3
CHARACTERS = 500  # distinct ones that are tokenised one by one
MANY = 0.05  # share of unknown tokens, or of lost texts, from which on an encoder is hardly made for a text


@dataclass(frozen=True)
class Unread:
    """What a tokenizer does not know of some texts.

    texts: how many were looked at. tokens: of these; unknown: of those. lost: the texts of which not a single token
    is known, so that nothing tells one from another. examples: unknown words. scripts: of the characters that are not
    known, with their share of the texts.
    """

    texts: int
    tokens: int
    unknown: int
    lost: int
    examples: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    @property
    def alarming(self) -> bool:
        """Whether another encoder should be taken."""
        return max(self.share, self.lost / max(self.texts, 1)) >= MANY

    def __str__(self) -> str:
        said = f"the tokenizer does not know {self.unknown:,} of {self.tokens:,} tokens ({self.share:.1%})"
        said += f" in {self.texts:,} texts"
        if self.examples:
            said += f", for instance {', '.join(map(repr, self.examples))}"
        if self.scripts:
            said += f"; it cannot read {', '.join(self.scripts)}"
        if self.lost:
            said += f"; {self.lost:,} of the texts hold nothing that it knows, so that they look alike to the encoder"
        remedy = "start from an encoder whose tokenizer reads this language or script"
        return f"{said}; {remedy}, or leave these texts out" if self.alarming else said


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


def count_unread(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], ids: Sequence[Sequence[int]]) -> Unread:
    """What a tokenizer does not know of these texts, special tokens aside. ids: of the tokens of each that count."""
    unknown = unknown_id(tokenizer)
    special = set(tokenizer.all_special_ids) - {unknown}
    rows = [[token for token in row if token not in special] for row in ids]
    counts = [row.count(unknown) if unknown is not None else 0 for row in rows]
    some = [text for text, count in zip(texts, counts, strict=True) if count]
    lost = sum(count == len(row) for row, count in zip(rows, counts, strict=True))
    return Unread(
        texts=len(rows),
        tokens=sum(map(len, rows)),
        unknown=sum(counts),
        lost=lost,
        examples=_examples(tokenizer, some, unknown),
        scripts=_scripts(tokenizer, some, unknown, len(rows)),
    )


def _examples(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], unknown: int | None) -> tuple[str, ...]:
    """The first unknown words of texts, each cut to 40 characters."""
    words: dict[str, None] = {}
    for text in texts:
        found = text.split()[:CHARACTERS]
        ids = _ids(tokenizer, found)
        words |= dict.fromkeys(word[:40] for word, row in zip(found, ids, strict=True) if unknown in row)
        if len(words) >= EXAMPLES:
            break
    return tuple(words)[:EXAMPLES]


def _scripts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], unknown: int | None, of: int
) -> tuple[str, ...]:
    """The scripts with characters that are not known, the most frequent first, with their share of ``of`` texts."""
    seen = Counter(c for text in texts for c in set(text) if ord(c) > 127)
    characters = [c for c, _ in seen.most_common(CHARACTERS)]
    if not characters:
        return ()
    bad = {c: script(c) for c, row in zip(characters, _ids(tokenizer, characters), strict=True) if unknown in row}
    texts_with = Counter(name for text in texts for name in {bad[c] for c in set(text) & bad.keys()})
    return tuple(f"{name} ({count / of:.0%} of the texts)" for name, count in texts_with.most_common(SCRIPTS))


def _ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[list[int]]:
    return token_ids(tokenizer, words, UNCUT, split_special_tokens=True, add_special_tokens=False) if words else []


def script(character: str) -> str:
    """Of a letter, the first word of its Unicode name, such as Thai; else that it is a sign."""
    name = unicodedata.name(character, "")
    if not unicodedata.category(character).startswith(("L", "M")):
        return "emoji and other signs"
    return (name.split() or ["unnamed letters"])[0].capitalize()
