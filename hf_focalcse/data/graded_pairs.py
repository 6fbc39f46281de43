"""Pairs of sentences with a score that people gave them: a set of them, and how a user's file of them is read."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from .formats import read_records


class Pair(NamedTuple):
    """Two sentences and how similar people found them. subset: of the task, empty where it has none."""

    subset: str
    score: float
    sentence1: str
    sentence2: str


@dataclass(frozen=True)
class PairSet:
    """The pairs of one split of one task, in file order.

    source, revision: where they were read. text: "raw", or "senteval" where it is tokenised. expected: the published
    number of pairs. aligned_above: the score above which a pair counts as positive, for alignment.

    Raises:
        UserError: no correlation can be computed, since there are fewer than 2 pairs or all scores are equal.
    """

    task: str
    split: str
    pairs: tuple[Pair, ...]
    source: str
    revision: str | None = None
    text: str = "raw"
    expected: int | None = None
    aligned_above: float | None = None

    def __post_init__(self):
        if len(self.pairs) < 2:
            raise UserError(f"{self.source}: {len(self.pairs)} scored pairs for {self.key}, at least 2 are needed")
        if self.scores.min() == self.scores.max():
            raise UserError(f"{self.source}: all scores of {self.key} equal {self.scores[0]:g}; they must differ")

    @cached_property
    def scores(self) -> np.ndarray:
        """(N,) float64."""
        return np.array([pair.score for pair in self.pairs], dtype=np.float64)

    def texts(self) -> list[str]:
        """Both sentences of each pair, in order."""
        return [text for pair in self.pairs for text in (pair.sentence1, pair.sentence2)]

    def fingerprints(self) -> np.ndarray:
        """(N,) int64, one of each pair: two pairs of the same sentences have the same, in this set or another."""
        texts = (f"{pair.sentence1}\0{pair.sentence2}".encode() for pair in self.pairs)
        digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        return np.frombuffer(digests, dtype="<i8").astype(np.int64)

    @property
    def key(self) -> str:
        """``STS16/test``: how every score of this set begins."""
        return f"{self.task}/{self.split}"

    def describe(self) -> dict[str, Any]:
        """What results.json says about the data; the hash covers subset, score and text of the pairs in order."""
        content = "\n".join("\t".join(map(str, pair)) for pair in self.pairs)
        return {
            "pairs": len(self.pairs),
            "expected_pairs": self.expected,
            "subsets": dict(Counter(pair.subset for pair in self.pairs if pair.subset)),
            "source": self.source,
            "revision": self.revision,
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "text": self.text,
            "empty_sentences": sum(not text.strip() for pair in self.pairs for text in pair[2:]),
        }


def parse_score(value: Any, where: str) -> float:
    """A score, or UserError if it is not a finite number; ``where``: its place for messages."""
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{where}: the score {value!r} is not a finite number")
    return score


def pair_of(where: str, row: dict[str, Any]) -> Pair:
    """The pair in a row with sentence1, sentence2, score and maybe subset; ``where``: its place for messages."""
    for column in ("sentence1", "sentence2"):
        if not isinstance(row[column], str):
            raise UserError(f"{where}, column {column}: {row[column]!r} is not text")
    score = parse_score(row["score"], f"{where}, column score")
    return Pair(str(row.get("subset") or ""), score, row["sentence1"], row["sentence2"])


def read_pairs(path: str | Path) -> PairSet:
    """The pairs of a user's file: .csv, .tsv (without quoting), .jsonl or .parquet, each also with .gz.

    It has the columns sentence1, sentence2 and score. A column subset, if there is one, makes scores of each subset.
    The key of the set is ``<file name>/file``.
    """
    path = Path(path)
    rows = read_records(path, ("sentence1", "sentence2", "score"))
    return PairSet(path.name.split(".")[0], "file", tuple(pair_of(*row) for row in rows), source=str(path))
