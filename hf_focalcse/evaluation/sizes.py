"""Scores of vectors that are cut to fewer dimensions, beside those of the whole ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..runs.scores import ScoreKey, is_headline, sizes_of
from .protocol import Task, Vectors


class Shortened(Vectors):
    """The first ``size`` dimensions of vectors; every metric normalises what it gets."""

    def __init__(self, whole: Vectors, size: int):
        self.whole, self.size = whole, size

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """N texts -> (N, size)."""
        return self.whole.of(texts)[:, : self.size]


def score_sizes(tasks: Sequence[Task], vectors: Vectors, sizes: Iterable[int]) -> dict[str, float]:
    """The scores that each set is known by, for vectors cut to each of the sizes, under keys that name it."""
    found: dict[str, float] = {}
    for size in sizes:
        for task in tasks:
            scores = task.score(Shortened(vectors, size)).scores
            found |= {str(ScoreKey.parse(key).at(size)): value for key, value in scores.items() if is_headline(key)}
    return found


def smaller_sizes(sizes: Iterable[int], dimensions: int) -> list[int]:
    """Those below ``dimensions``, the largest first: vectors of so many are scored in any case."""
    return sorted((size for size in set(sizes) if size < dimensions), reverse=True)


def by_size(scores: Mapping[str, float]) -> tuple[list[int], dict[ScoreKey, list[str]]]:
    """The sizes, and the scores that were measured at several: of whole vectors first, then of each size."""
    sizes = sizes_of(scores)
    keys = dict.fromkeys(key.at(None) for text in scores if (key := ScoreKey.parse(text)).size is not None)
    found = {key: [scores.get(str(key.at(size))) for size in (None, *sizes)] for key in keys}
    return sizes, {key: ["" if score is None else f"{score:.2f}" for score in row] for key, row in found.items()}
