"""Sentences -> sets that judge an encoder without labels: each damaged sentence must find what it was made of."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.files import read_lines
from ..errors import UserError
from .matching import MatchSet
from .protocol import Scored, Vectors

FEWEST_WORDS = 5  # of shorter sentences little is left
MOST = 2000  # sentences: encoding four texts of each takes time, and more would narrow the interval little


class Damage(NamedTuple):
    """How a query and its candidate are made of the words of a sentence; rule: the same in words."""

    make: Callable[[list[str]], tuple[list[str], list[str]]]
    rule: str


def _drawn(words: list[str], share: float) -> list[bool]:
    """Which words are drawn: a share of them.

    The draw follows a hash of the sentence and the word's place in it, not a generator of numbers, so that a sentence
    is damaged alike in every file and under every version.
    """
    text = " ".join(words)
    places = range(len(words))
    digests = [hashlib.blake2b(f"{place}\0{text}".encode(), digest_size=8).digest() for place in places]
    chosen = set(sorted(places, key=digests.__getitem__)[: round(share * len(words))])
    return [place in chosen for place in places]


def _copy(words: list[str]) -> tuple[list[str], list[str]]:
    return [word for word, drawn in zip(words, _drawn(words, 0.4), strict=True) if drawn], words


def _parts(words: list[str]) -> tuple[list[str], list[str]]:
    drawn = _drawn(words, 0.5)
    first, second = ([word for word, of in zip(words, drawn, strict=True) if of is side] for side in (True, False))
    return first, second


COPIES = Damage(_copy, "a sentence with 60 % of its words left out must find the whole sentence")
PARTS = Damage(_parts, "a random half of a sentence's words must find the other half")


@dataclass(frozen=True)
class CopySet:
    """The same N sentences asked twice: ``copies`` rewards robustness, ``parts`` needs what was known of meaning.

    Neither ranks encoders well alone: copies are found better the harder one trains, also where meaning is lost, and
    parts are found worse before meaning is. Their mean follows the graded pairs of STS-B, see studies/judge.
    """

    copies: MatchSet
    parts: MatchSet

    @property
    def key(self) -> str:
        """``quickstart/copies``: how every score of this set begins."""
        return self.copies.key

    @property
    def headline(self) -> str:
        """``quickstart/copies/mrr``."""
        return self.copies.headline

    def texts(self) -> list[str]:
        """What both sets ask for."""
        return [*self.copies.texts(), *self.parts.texts()]

    def fingerprints(self) -> np.ndarray:
        """(N,) int64, one of each sentence."""
        return self.copies.fingerprints()

    def score(self, vectors: Vectors) -> Scored:
        """Mean over the sentences of the two reciprocal ranks, of recall@1 in the same way, and MRR of each set.

        Raises:
            UserError: all cosines are alike.
        """
        first, second = (of.score(vectors).units for of in (self.copies, self.parts))
        names = {name: [of[f"{part.key}/{name}"] for of, part in ((first, self.copies), (second, self.parts))]
                 for name in ("mrr", "recall@1")}  # fmt: skip
        units = {f"{self.key}/{name}": np.mean(both, axis=0) for name, both in names.items()}
        units |= {f"{self.key}/{kind}_mrr": names["mrr"][i] for i, kind in enumerate(("copies", "parts"))}
        return Scored({key: float(values.mean()) for key, values in units.items()}, units=units)

    def describe(self) -> dict[str, Any]:
        """What results.json says about the data; the hash covers both sets."""
        found, parts = self.copies.describe(), self.parts.describe()
        sha256 = hashlib.sha256(f"{found['sha256']} {parts['sha256']}".encode()).hexdigest()
        return found | {"sha256": sha256, "rule": f"mean of two: {found['rule']}; {parts['rule']}"}


def judge_by_copies(path: str | Path, task: str | None = None) -> CopySet:
    """The sentences of a text file, one a line, as a `CopySet`; its key is ``<task>/copies``.

    task: by default the file's name without its ending.

    Raises:
        UserError: the file cannot be read, or as for `copies_of`.
    """
    path = Path(path)
    return copies_of(read_lines(path), task or path.name.split(".")[0], str(path), f"{path} has")


def copies_of(sentences: Iterable[str], task: str, source: str, holder: str) -> CopySet:
    """Sentences as a `CopySet`; its key is ``<task>/copies``.

    Those of fewer than 5 words, and those that occur several times, are left out; of more than 2,000, those are kept
    that have the lowest hashes. source: for records. holder: begins the message where they are too few.

    Raises:
        UserError: fewer than 2 sentences are left.
    """
    kept = list(_once(line.split() for line in sentences))
    made = [tuple(" ".join(side) for of in (COPIES, PARTS) for side in of.make(words)) for words in kept]
    counts = Counter(row[3] for row in made)  # the other candidates are whole sentences, of which none is twice
    made = [row for row in made if counts[row[3]] == 1]
    if len(made) < 2:
        raise UserError(
            f"{holder} {len(made)} different sentences of at least {FEWEST_WORDS} words, one a line; to judge an "
            "encoder takes hundreds"
        )
    found = len(made)
    if found > MOST:
        keys = [hashlib.blake2b(row[1].encode(), digest_size=8).digest() for row in made]
        made = [made[i] for i in sorted(sorted(range(found), key=keys.__getitem__)[:MOST])]
    drawn = f", of {MOST:,} of {found:,} sentences" if found > MOST else ""
    sides = list(zip(*made, strict=True))
    return CopySet(
        MatchSet(task, "copies", sides[0], sides[1], source, rule=COPIES.rule),
        MatchSet(task, "parts", sides[2], sides[3], source, rule=PARTS.rule + drawn),
    )


def _once(sentences: Iterable[list[str]]) -> Iterator[list[str]]:
    """Those that are long enough and occur once, whatever their case, spaces and punctuation."""
    long = [words for words in sentences if len(words) >= FEWEST_WORDS]
    forms = ["".join(char for char in "".join(words).casefold() if char.isalnum()) for words in long]
    counts = Counter(forms)
    return (words for words, form in zip(long, forms, strict=True) if counts[form] == 1)
