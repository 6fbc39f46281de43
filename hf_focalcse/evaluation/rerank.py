"""Rank the candidates of each query by cosine; MAP and MRR as the scorer of the set computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from .evaluate import Encoder, Results, encode_once, require_spread
from .metrics import average_precision, cosine, reciprocal_rank
from .rerank_sets import SCORERS, RerankSet


def evaluate_rerank(
    encoder: Encoder, sets: Sequence[RerankSet], progress: bool = True, model: Mapping[str, Any] | None = None
) -> Results:
    """Score ``encoder`` on ``sets`` (see ``load_rerank``) under keys such as ``semeval_cqa_b/dev2016/map_official``.

    The metadata hold the scores of the search engine's own order.

    Raises:
        UserError: as `evaluate_sts` does.
    """
    if not sets:
        raise UserError("no set to rerank; name at least one")
    rows = {text: row for row, text in enumerate(dict.fromkeys(text for of in sets for text in of.texts()))}
    vectors = encode_once(encoder, rows, progress)
    scores: dict[str, float] = {}
    data: dict[str, Any] = {}
    for of in sets:
        queries = [rows[query.text] for query in of.queries for _ in query.candidates]
        candidates = [rows[text] for query in of.queries for text in query.candidates]
        # Each pair once: the last bit of a sum over D may depend on the row, which would break a tie of equal pairs.
        pairs, places = np.unique(np.stack([queries, candidates], axis=1), axis=0, return_inverse=True)
        cosines = cosine(vectors[pairs[:, 0]], vectors[pairs[:, 1]])[places.ravel()]
        if np.count_nonzero(pairs[:, 0] != pairs[:, 1]) > 1:  # one pair or equal texts have no spread
            require_spread(of.key, cosines)
        ends = np.cumsum([len(query.candidates) for query in of.queries])
        found = score(of, np.split(cosines, ends[:-1]))
        scores |= {f"{of.key}/{name}": value for name, value in found.items()}
        engine = [query.engine for query in of.queries]
        known = None if None in engine else score(of, [np.array(order) for order in engine])
        data[of.key] = of.describe() | {"search_engine": known}
    return Results.of(scores, data, model)


def score(of: RerankSet, predicted: Sequence[np.ndarray]) -> dict[str, float]:
    """Scores of the candidates of each query -> ``map_SCORER`` and ``mrr_SCORER`` of the set, x 100."""
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
    found = {"map": np.mean(precisions), "mrr": np.mean(ranks)}
    return {f"{metric}_{of.scorer}": round(100 * float(value), 6) for metric, value in found.items()}
