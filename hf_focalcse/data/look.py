"""A sample of the training text -> what a person should know of it: what no tokenizer reads, what is no sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .guesses import ENTITY
from .unread import count_unread
from .views import token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOOKED_AT = 2_000  # rows that are tokenised, in about 0.3 s
TOLD = 0.005  # share of the sentences from which something is told
LOUD = 0.05  # share of texts that become equal, from which it is an alarm
TAG = re.compile(r"</?(?:p|br|b|i|u|a|div|span|li|ul|td|tr|h[1-6]|em|strong)\b[^<>]*>", re.IGNORECASE)
MOJIBAKE = re.compile(r"Ã[\x80-\xbf©¨¤¶¼ŸªÂ€§¡±³º]|â€[™œ\x9d“”˜¦]|Â[\xa0°£§©®»«]")
NEXT = re.compile(r"[.!?]\s+[A-ZÀ-Þ]")


@dataclass
class Looked:
    """What was seen. The shares are of all texts of ``looked_at`` rows; None without a tokenizer."""

    looked_at: int
    truncated_share: float | None = None  # of the texts, longer than the length
    unknown_share: float | None = None  # of the tokens, special ones apart, that the tokenizer does not know
    alike_share: float | None = None  # of the texts whose tokens are those of another text
    notes: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)


def look(
    read: Callable[[int], Sequence[str]],
    count: int,
    tokenizer: PreTrainedTokenizerBase | None,
    max_seq_length: int,
    told: Sequence[str] = (),
) -> Looked:
    """What ``count`` rows are like, of which ``read`` gives the texts of one by its number; evenly spaced ones are
    read. told: what is known of how they were read, which the notes begin with."""
    chosen = np.unique(np.linspace(0, count - 1, min(count, LOOKED_AT)).round().astype(np.int64))
    texts = [text for i in chosen for text in read(int(i))]
    found = Looked(len(chosen), notes=list(dict.fromkeys([*told, *_habits(texts)])))
    if tokenizer is not None:
        _tokens(found, texts, tokenizer, max_seq_length)
    return found


def _tokens(found: Looked, texts: list[str], tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> None:
    # One token more than allowed is enough to see the truncation.
    ids = token_ids(tokenizer, texts, max_seq_length + 1, split_special_tokens=True)
    found.truncated_share = sum(len(row) > max_seq_length for row in ids) / len(ids)
    unread = count_unread(tokenizer, texts, ids)
    found.unknown_share = unread.share
    if unread.share >= TOLD or unread.lost:
        _tell(found, str(unread), loud=unread.alarming)
    first: dict[tuple[int, ...], str] = {}
    alike = [
        text
        for text, row in zip(texts, ids, strict=True)
        if first.setdefault(_kept(row, max_seq_length), text) != text
    ]
    found.alike_share = len(alike) / len(texts)
    if found.alike_share >= TOLD:
        example = min(alike, key=len)
        other = first[_kept(ids[texts.index(example)], max_seq_length)]
        said = f"{found.alike_share:.1%} of the texts have the tokens of another text"
        such = f"such as {example[:40]!r} those of {other[:40]!r}"
        remedy = "equal tokens are masked as equal texts are (--mask_duplicates)"
        _tell(found, f"{said}, {such}; {remedy}", loud=found.alike_share >= LOUD)


def _kept(row: list[int], max_seq_length: int) -> tuple[int, ...]:
    return tuple(row[: max_seq_length - 1])


def _tell(found: Looked, text: str, loud: bool) -> None:
    found.notes.append(text)
    if loud:
        found.alarms.append(f"training text: {text}")


def _habits(texts: list[str]) -> Iterator[str]:
    """What is no part of a sentence, in texts."""
    n = len(texts)

    def share(test: Callable[[str], object]) -> float:
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
