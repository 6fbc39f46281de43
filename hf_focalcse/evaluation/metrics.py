"""Scores of sentence embeddings, from numpy arrays; an undefined score raises ValueError, it is never 0."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def spearman(predictions: ArrayLike, references: ArrayLike) -> float:
    """Rank correlation of two (N,) sequences in -1..1, ties at their mean rank; ValueError where it is undefined."""
    return float(stats.spearmanr(*_sequences(predictions, references)).statistic)


def pearson(predictions: ArrayLike, references: ArrayLike) -> float:
    """Linear correlation of two (N,) sequences in -1..1; ValueError where it is undefined."""
    return float(stats.pearsonr(*_sequences(predictions, references)).statistic)


def cosine(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Cosine of each row of x with the same row of y: (N, D), (N, D) -> (N,) float64."""
    return np.einsum("nd,nd->n", *_same_shape(unit(x), unit(y)))


def average_precision(relevant: ArrayLike, scores: ArrayLike, depth: int | None = None, tied: str = "order") -> float:
    """Mean of the precision at each relevant candidate of a ranking by falling score, 0..1: (N,) bool, (N,) -> float.

    depth: candidates below that rank are neither looked at nor counted in the mean; 0 where none above is relevant.
    tied: equal scores stay in the order given ("order"), or share one place, so that precision is taken where all of
    them have been read ("together", as in scikit-learn). ValueError where nothing is relevant.
    """
    relevant, scores = _ranking(relevant, scores)
    if tied not in ("order", "together"):
        raise ValueError(f"tied is {tied!r}; it must be order or together")
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(relevant[order])
    if tied == "order":
        found = np.flatnonzero(relevant[order][:depth])
        return float(np.mean(hits[found] / (found + 1))) if found.size else 0.0
    if depth is not None:
        raise ValueError(f"depth is {depth}, which cuts through candidates that are tied together")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # the last of each group of equal scores
    gained = np.diff(hits[ends], prepend=0)
    return float(np.sum(gained * hits[ends] / (ends + 1)) / hits[-1])


def reciprocal_rank(relevant: ArrayLike, scores: ArrayLike, depth: int | None = None) -> float:
    """1 / rank of the first relevant candidate by falling score, 0 below ``depth``; equal scores in the order given.

    ValueError where nothing is relevant.
    """
    relevant, scores = _ranking(relevant, scores)
    first = int(np.argmax(relevant[np.argsort(-scores, kind="stable")]))
    return 0.0 if depth is not None and first >= depth else 1 / (first + 1)


def alignment(x: ArrayLike, y: ArrayLike) -> float:
    """E ||f(x) - f(y)||^2 over positive pairs, 0..4, lower is better (Wang & Isola 2020): (N, D), (N, D) -> float."""
    x, y = _same_shape(unit(x), unit(y))
    return float(np.mean(np.sum((x - y) ** 2, axis=1)))


def uniformity(x: ArrayLike, block: int = 256) -> float:
    """log E exp(-2 ||f(x) - f(y)||^2) over all pairs i < j of (N, D), -8..0, lower is better (Wang & Isola 2020).

    It is one logarithm of the mean over all pairs. ``block`` rows are compared at a time, so memory is block x N.
    """
    x = unit(x)
    if len(x) < 2:
        raise ValueError(f"uniformity needs at least 2 vectors, got {len(x)}")
    total = 0.0
    for start in range(0, len(x), block):
        similarity = x[start : start + block] @ x[start:].T  # ||a - b||^2 = 2 - 2ab for unit vectors
        total += np.triu(np.exp(4 * similarity - 4), k=1).sum()
    return float(np.log(total / (len(x) * (len(x) - 1) / 2)))


def unit(x: ArrayLike) -> np.ndarray:
    """(N, D) -> float64 rows of length 1; ValueError for a row that is not finite or is zero."""
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or not len(x):
        raise ValueError(f"expected vectors of shape (N, D) with N > 0, got {x.shape}")
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(norm) | (norm == 0))
    if bad.size:
        raise ValueError(f"vector {bad[0]} has norm {norm[bad[0], 0]}: it has no direction")
    return x / norm


def _sequences(predictions: ArrayLike, references: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Both as (N,) float64; checks that lengths are equal, N > 1, and values finite and not constant."""
    both = np.asarray(predictions, dtype=np.float64), np.asarray(references, dtype=np.float64)
    if both[0].ndim != 1 or both[0].shape != both[1].shape:
        raise ValueError(f"predictions and references must be lists of one length: {both[0].shape}, {both[1].shape}")
    if len(both[0]) < 2:
        raise ValueError(f"a correlation needs at least 2 pairs, got {len(both[0])}")
    for name, values in zip(("predictions", "references"), both, strict=True):
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(f"{name} hold {values[bad[0]]} at index {bad[0]}: all values must be finite")
        if values.min() == values.max():
            raise ValueError(f"all {len(values)} {name} equal {values[0]:g}: the correlation is undefined")
    return both


def _ranking(relevant: ArrayLike, scores: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Both as (N,), bool and float64; checks that lengths are equal, scores finite, and at least one relevant."""
    relevant, scores = np.asarray(relevant, dtype=bool), np.asarray(scores, dtype=np.float64)
    if relevant.ndim != 1 or relevant.shape != scores.shape:
        raise ValueError(f"relevance and scores must be lists of one length: {relevant.shape}, {scores.shape}")
    bad = np.flatnonzero(~np.isfinite(scores))
    if bad.size:
        raise ValueError(f"scores hold {scores[bad[0]]} at index {bad[0]}: all values must be finite")
    if not relevant.any():
        raise ValueError(f"none of the {len(relevant)} candidates is relevant: the score is undefined")
    return relevant, scores


def _same_shape(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if x.shape != y.shape:
        raise ValueError(f"paired vectors must have one shape: {x.shape}, {y.shape}")
    return x, y
