"""Whitening: vectors made uncorrelated and of unit variance, as a baseline without training (Su et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError


class Whitening:
    """y = (x - mu) U[:, :k] diag(1/sqrt(lambda)), fitted on vectors (N, D).

    mu is their mean; U and lambda are the eigenvectors and eigenvalues of their covariance, largest first.

    k: the number of dimensions that are kept; by default all that the vectors span (381 of all-MiniLM-L6-v2's 384).

    Raises:
        UserError: k is not in 1…D, or the vectors do not span so many dimensions.
    """

    def __init__(self, vectors: np.ndarray, k: int | None = None):
        if len(vectors) < 2:
            raise UserError(f"whitening needs at least two different sentences to be fitted on, not {len(vectors)}")
        rounding = np.finfo(vectors.dtype).eps * np.abs(vectors).max()  # error, which spans no dimension
        vectors = np.asarray(vectors, dtype=np.float64)
        size = vectors.shape[1]
        if k is not None and not 1 <= k <= size:
            raise UserError(f"--whiten_dim is {k}; this encoder's vectors have {size} numbers, so give 1 to {size}")
        self.mean = vectors.mean(0)
        variances, directions = np.linalg.eigh(np.atleast_2d(np.cov(vectors, rowvar=False)))
        variances, directions = variances[::-1], directions[:, ::-1]  # largest first
        floor = max(variances[0] * size * np.finfo(np.float64).eps, (4 * rounding) ** 2)
        rank = int((variances > floor).sum())
        if rank < (k or 1):
            raise UserError(
                f"--whiten_dim is {k}, but the {len(vectors)} vectors that whitening is fitted on span {rank} "
                f"dimensions; give at most that, or more text with --whiten FILE"
            )
        k = k or rank
        self.kernel = directions[:, :k] / np.sqrt(variances[:k])  # (D, k)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """(N, D) -> (N, k), float64."""
        return (np.asarray(vectors, dtype=np.float64) - self.mean) @ self.kernel


class WhitenedEncoder:
    """An encoder whose vectors are whitened."""

    def __init__(self, encoder: Any, whitening: Whitening):
        self.encoder, self.whitening = encoder, whitening

    def encode(self, texts: list[str]) -> np.ndarray:
        return self.whitening(self.encoder.encode(texts))


class Remembering:
    """An encoder that keeps its vectors, so that texts to fit on and to score are encoded once."""

    def __init__(self, encoder: Any):
        self.encoder, self.vectors = encoder, dict[str, np.ndarray]()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self.vectors]
        if new:
            self.vectors |= zip(new, np.asarray(self.encoder.encode(new)), strict=True)
        return np.stack([self.vectors[text] for text in texts])
