"""A sample of the training text -> what a person should know of it: what no tokenizer reads, what is no sentence."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .guesses import ENTITY
from .views import token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOOKED_AT = 2_000  # sentences that are tokenised, in about 0.3 s
TOLD = 0.005  # share of the sentences from which something is told
LOUD = 0.05  # share of unknown tokens, or of sentences that become equal, from which it is an alarm
CHARACTERS = 500  # distinct ones that are tokenised one by one
TAG = re.compile(r"</?(?:p|br|b|i|u|a|div|span|li|ul|td|tr|h[1-6]|em|strong)\b[^<>]*>", re.IGNORECASE)
MOJIBAKE = re.compile(r"Ã[\x80-\xbf©¨¤¶¼ŸªÂ€§¡±³º]|â€[™œ\x9d“”˜¦]|Â[\xa0°£§©®»«]")
NEXT = re.compile(r"[.!?]\s+[A-ZÀ-Þ]")


@dataclass
class Looked:
    """What was seen. The shares are of the ``looked_at`` sentences, or of their tokens; None without a tokenizer."""

    looked_at: int
    truncated_share: float | None = None  # of the sentences, longer than the length
    unknown_share: float | None = None  # of the tokens, special ones apart, that are [UNK]
    alike_share: float | None = None  # of the sentences whose tokens are those of another text
    notes: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)


def look(
    read: Callable[[int], str], count: int, tokenizer: PreTrainedTokenizerBase | None, max_seq_length: int
) -> Looked:
    """What ``count`` sentences are like, of which ``read`` gives one by its number; evenly spaced ones are read."""
    chosen = np.unique(np.linspace(0, count - 1, min(count, LOOKED_AT)).round().astype(np.int64))
    texts = [read(int(i)) for i in chosen]
    found = Looked(len(texts), notes=list(_habits(texts)))
    if tokenizer is not None:
        _tokens(found, texts, tokenizer, max_seq_length)
    return found


def _tokens(found: Looked, texts: list[str], tokenizer: Any, max_seq_length: int) -> None:
    # One token more than allowed is enough to see the truncation.
    ids = token_ids(tokenizer, texts, max_seq_length + 1, split_special_tokens=True)
    found.truncated_share = sum(len(row) > max_seq_length for row in ids) / len(ids)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    counts = Counter(token for row in ids for token in row if token not in special)
    unknown, total = counts[tokenizer.unk_token_id], max(sum(counts.values()), 1)
    found.unknown_share = unknown / total if tokenizer.unk_token_id is not None else 0.0
    first: dict[tuple[int, ...], str] = {}
    alike = [
        text
        for text, row in zip(texts, ids, strict=True)
        if first.setdefault(_kept(row, max_seq_length), text) != text
    ]
    found.alike_share = len(alike) / len(texts)
    if found.unknown_share >= TOLD:
        scripts = unreadable(texts, tokenizer)
        what = f": it cannot read {', '.join(scripts)}" if scripts else ""
        said = f"{found.unknown_share:.1%} of the tokens are {tokenizer.unk_token}{what}"
        remedy = "start from an encoder for this language, or leave these sentences out"
        _tell(found, found.unknown_share, f"{said}; {remedy}")
    if found.alike_share >= TOLD:
        example = min(alike, key=len)
        other = first[_kept(ids[texts.index(example)], max_seq_length)]
        said = f"{found.alike_share:.1%} of the sentences have the tokens of another text"
        such = f"such as {example[:40]!r} those of {other[:40]!r}"
        remedy = "equal tokens are masked as equal texts are (--mask_duplicates)"
        _tell(found, found.alike_share, f"{said}, {such}; {remedy}")


def _kept(row: list[int], max_seq_length: int) -> tuple[int, ...]:
    return tuple(row[: max_seq_length - 1])


def _tell(found: Looked, share: float, text: str) -> None:
    found.notes.append(text)
    if share >= LOUD:
        found.alarms.append(f"training text: {text}")


def unreadable(texts: Sequence[str], tokenizer: Any) -> list[str]:
    """The scripts with characters that the tokenizer reads as unknown, the most frequent first, with their share of
    the texts."""
    seen = Counter(c for text in texts for c in set(text) if ord(c) > 127)
    characters = [c for c, _ in seen.most_common(CHARACTERS)]
    if not characters:
        return []
    ids = token_ids(tokenizer, characters, 8, split_special_tokens=True)
    bad = {c: script(c) for c, row in zip(characters, ids, strict=True) if tokenizer.unk_token_id in row}
    texts_with = Counter(name for text in texts for name in {bad[c] for c in set(text) & bad.keys()})
    return [f"{name} ({count / len(texts):.0%} of the sentences)" for name, count in texts_with.most_common(3)]


def script(character: str) -> str:
    """Of a letter, the first word of its Unicode name, such as Thai; else that it is a sign."""
    name = unicodedata.name(character, "")
    if not unicodedata.category(character).startswith(("L", "M")):
        return "emoji and other signs"
    return (name.split() or ["unnamed letters"])[0].capitalize()


def _habits(texts: list[str]) -> Any:
    """What is no part of a sentence, in texts."""
    n = len(texts)

    def share(test: Callable[[str], Any]) -> float:
        return sum(bool(test(text)) for text in texts) / n

    for test, what in (
        (ENTITY.search, "hold HTML entities such as &amp;; html.unescape of Python turns them into characters"),
        (TAG.search, "hold HTML tags; take them out"),
        (MOJIBAKE.search, "hold UTF-8 that was read as Windows text, such as Ã©; the package ftfy mends it"),
    ):
        if (found := share(test)) >= TOLD:
            yield f"{found:.1%} of the sentences {what}"
    if n >= 20:
        if (found := share(NEXT.search)) > 0.5:
            yield f"{found:.0%} of the lines hold several sentences; what is beyond --max_seq_length is not read"
        if (found := share(lambda text: len(text.split()) == 1)) > 0.5 and share(str.isascii) > 0.5:
            yield f"{found:.0%} of the lines are one word; a line should be a sentence"
        if (found := share(lambda text: len(text) > 1 and text[0] == text[-1] == '"')) > 0.5:
            yield f"{found:.0%} of the sentences stand in double quotes, which are read as part of the text"
        lengths = np.array([len(text) for text in texts])
        ended = share(lambda text: text[-1] in ".!?:;\"')]”’»。！？")
        if np.quantile(lengths, 0.99) < 100 and np.quantile(lengths, 0.5) > 50 and ended < 0.5 and lengths.std() < 15:
            yield "the lines are equally long and seldom end a sentence: they seem to be wrapped; join them first"
