"""Texts that must each find their own partner among those of all others: a judge that needs no labels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError
from .metrics import unit
from .protocol import Scored, Vectors, fingerprints, require_spread

BLOCK = 1024  # queries compared with all candidates at a time: memory is BLOCK x N
FEWEST = 2


@dataclass(frozen=True)
class MatchSet:
    """N queries and N candidates; the candidate of a query is the one with its number.

    unit: what a query stands for, in the plural. rule: how queries and candidates were made, for results.json.

    Raises:
        UserError: there are fewer than 2, or two candidates are the same text, so that neither could be found.
    """

    task: str
    split: str
    queries: tuple[str, ...]
    candidates: tuple[str, ...]
    source: str
    unit: str = "sentences"
    rule: str = ""

    def __post_init__(self):
        if len(self.queries) < FEWEST or len(self.queries) != len(self.candidates):
            raise UserError(
                f"{self.source}: {len(self.queries)} {self.unit} and {len(self.candidates)} candidates of {self.key}: "
                f"there must be as many of each, and at least {FEWEST}"
            )
        if len(set(self.candidates)) < len(self.candidates):
            twice = next(text for text in self.candidates if self.candidates.count(text) > 1)
            raise UserError(f"{self.source}: {twice!r} is the candidate of several {self.unit}; leave the others out")

    @property
    def key(self) -> str:
        """``quickstart/copies``: how every score of this set begins."""
        return f"{self.task}/{self.split}"

    @property
    def headline(self) -> str:
        """``quickstart/copies/mrr``."""
        return f"{self.key}/mrr"

    def texts(self) -> list[str]:
        """The queries, then the candidates."""
        return [*self.queries, *self.candidates]

    def fingerprints(self) -> np.ndarray:
        """(N,) int64, one of each query with its candidate."""
        return fingerprints(f"{query}\0{own}" for query, own in zip(self.queries, self.candidates, strict=True))

    def score(self, vectors: Vectors) -> Scored:
        """Mean reciprocal rank of the own candidate by cosine, and how often it is the first.

        Raises:
            UserError: all cosines are alike.
        """
        ranks = own_ranks(self.key, vectors.of(self.queries), vectors.of(self.candidates))
        units = {f"{self.key}/mrr": 100 / ranks, f"{self.key}/recall@1": 100.0 * (ranks == 1)}
        return Scored({key: float(values.mean()) for key, values in units.items()}, units=units)

    def describe(self) -> dict[str, Any]:
        """What results.json says about the data; the hash covers all queries and candidates in order."""
        content = "\n".join(f"{query}\t{own}" for query, own in zip(self.queries, self.candidates, strict=True))
        return {
            "unit": self.unit,
            "pairs": len(self.queries),
            "expected_pairs": None,
            "subsets": {},
            "source": self.source,
            "revision": None,
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "text": "raw",
            "empty_sentences": 0,
            "rule": self.rule,
        }


def own_ranks(key: str, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The rank by cosine of each query's own candidate, from 1: (N, D), (N, D) -> (N,) int64.

    Candidates that are as near as the own one stand before it, so that vectors that are all alike find nothing.

    Raises:
        UserError: all cosines are alike.
    """
    queries, candidates = unit(queries), unit(candidates)
    ranks = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(queries)))
        cosines = queries[rows] @ candidates.T  # (R, N)
        if start == 0:
            require_spread(key, cosines.ravel())
        ranks[rows] = np.count_nonzero(cosines >= cosines[rows - start, rows][:, None], axis=1)
    return ranks
