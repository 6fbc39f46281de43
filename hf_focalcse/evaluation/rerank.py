"""Queries with candidates to rank by cosine; MAP and MRR as the scorer of the set computes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from .metrics import average_precision, cosine, reciprocal_rank
from .protocol import Scored, Vectors, fingerprints, require_spread

PUBLISHED = {"semeval_cqa_b/dev2016": 500, "semeval_cqa_b/train2016p2": 670}  # pairs of a query and a candidate


class Scorer(NamedTuple):
    """How an official scorer ranks, and how it counts a query without positives or without negatives.

    tied: see `average_precision`; "together" also puts positives first in the reciprocal rank. map_depth, mrr_depth:
    the ranks that count, None for all. unanswerable: whether a query without positives counts (as 0), and one without
    negatives (as 1); otherwise both are left out. rule: the same in words, for results.json.
    """

    tied: str
    map_depth: int | None
    mrr_depth: int | None
    unanswerable: bool
    rule: str


SCORERS = {
    "official": Scorer(
        *("order", 10, 10, True),
        rule="as the scorer of SemEval-2016 and 2017 task 3: the first 10 ranks, equal scores in the file's order, a "
        "query without positives counts as 0",
    ),
    "sbert": Scorer(
        *("together", None, 10, False),
        rule="as RerankingEvaluator of sentence-transformers and MTEB 1: average precision over all ranks with equal "
        "scores taken together, MRR within 10 ranks with positives first among equals, queries without positives or "
        "without negatives left out",
    ),
}


class Query(NamedTuple):
    """One query and its candidates. engine: the score of each by the search engine, higher is better, if known."""

    text: str
    candidates: tuple[str, ...]
    relevant: tuple[bool, ...]
    engine: tuple[float, ...] | None = None


@dataclass(frozen=True)
class RerankSet:
    """The queries of one split, in file order. scorer: whose rules score them, a row of `SCORERS`.

    Raises:
        UserError: no query can be scored.
    """

    task: str
    split: str
    queries: tuple[Query, ...]
    source: str
    scorer: str = "official"
    hub_id: str | None = None
    revision: str | None = None
    text: str = "raw"

    def __post_init__(self):
        if not any(self.scored(query) and any(query.relevant) for query in self.queries):
            raise UserError(
                f"{self.source}: no query of {self.key} can be scored; one needs a relevant candidate"
                + ("" if SCORERS[self.scorer].unanswerable else " and another")
            )

    @property
    def key(self) -> str:
        """``semeval_cqa_b/dev2016``: how every score of this set begins."""
        return f"{self.task}/{self.split}"

    @property
    def headline(self) -> str:
        """``semeval_cqa_b/dev2016/map_official``."""
        return f"{self.key}/map_{self.scorer}"

    def scored(self, query: Query) -> bool:
        """Whether the query counts at all."""
        return SCORERS[self.scorer].unanswerable or len(set(query.relevant)) == 2

    def fingerprints(self) -> np.ndarray:
        """(U,) int64, one of each query that counts, with its candidates and their labels."""
        return fingerprints(
            "\0".join((query.text, *query.candidates, *map(str, query.relevant)))
            for query in self.queries
            if self.scored(query)
        )

    def score(self, vectors: Vectors) -> Scored:
        """MAP and MRR of the candidates by cosine, beside those of the search engine's own order.

        Raises:
            UserError: all cosines are alike.
        """
        texts = list(dict.fromkeys(self.texts()))
        rows = {text: row for row, text in enumerate(texts)}
        array = vectors.of(texts)
        queries = [rows[query.text] for query in self.queries for _ in query.candidates]
        candidates = [rows[text] for query in self.queries for text in query.candidates]
        # Each pair once: the last bit of a sum over D may depend on the row, which would break a tie of equal pairs.
        pairs, places = np.unique(np.stack([queries, candidates], axis=1), axis=0, return_inverse=True)
        cosines = cosine(array[pairs[:, 0]], array[pairs[:, 1]])[places.ravel()]
        if np.count_nonzero(pairs[:, 0] != pairs[:, 1]) > 1:  # one pair or equal texts have no spread
            require_spread(self.key, cosines)
        ends = np.cumsum([len(query.candidates) for query in self.queries])
        units = by_query(self, np.split(cosines, ends[:-1]))
        engine = [query.engine for query in self.queries]
        known = None if None in engine else score(self, [np.array(order) for order in engine])
        return Scored(
            {f"{self.key}/{name}": float(values.mean()) for name, values in units.items()},
            {"search_engine": known},
            units={f"{self.key}/{name}": values for name, values in units.items()},
        )

    def texts(self) -> list[str]:
        """Each query followed by its candidates, in order."""
        return [text for query in self.queries for text in (query.text, *query.candidates)]

    def describe(self) -> dict[str, Any]:
        """What results.json says about the data; a pair is a query and a candidate, the hash covers all in order."""
        lines = [f"{query.text}\t{label:d}\t{text}" for query in self.queries
                 for text, label in zip(query.candidates, query.relevant, strict=True)]  # fmt: skip
        return {
            "unit": "queries",
            "pairs": len(lines),
            "expected_pairs": PUBLISHED.get(self.key),
            "queries": len(self.queries),
            "queries_scored": sum(map(self.scored, self.queries)),
            "without_positive": sum(not any(query.relevant) for query in self.queries),
            "without_negative": sum(all(query.relevant) for query in self.queries),
            "positives": sum(sum(query.relevant) for query in self.queries),
            "subsets": {},
            "source": self.source,
            "revision": self.revision,
            "hub_id": self.hub_id,
            "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
            "text": self.text,
            "empty_sentences": sum(not text.strip() for text in self.texts()),
            "scorer": self.scorer,
            "rule": SCORERS[self.scorer].rule,
        }


def score(of: RerankSet, predicted: Sequence[np.ndarray]) -> dict[str, float]:
    """Scores of the candidates of each query -> ``map_SCORER`` and ``mrr_SCORER`` of the set, x 100."""
    return {name: round(float(values.mean()), 6) for name, values in by_query(of, predicted).items()}


def by_query(of: RerankSet, predicted: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Scores of the candidates of each query -> those of each query that counts, (U,) x 100, by metric."""
    scorer = SCORERS[of.scorer]
    precisions, ranks = [], []
    for query, values in zip(of.queries, predicted, strict=True):
        if not of.scored(query):
            continue
        relevant = np.array(query.relevant)
        if not relevant.any():
            precisions.append(0.0)
            ranks.append(0.0)
            continue
        precisions.append(average_precision(relevant, values, scorer.map_depth, scorer.tied))
        order = np.argsort(~relevant, kind="stable") if scorer.tied == "together" else np.arange(len(relevant))
        ranks.append(reciprocal_rank(relevant[order], values[order], scorer.mrr_depth))
    return {f"map_{of.scorer}": 100 * np.array(precisions), f"mrr_{of.scorer}": 100 * np.array(ranks)}
