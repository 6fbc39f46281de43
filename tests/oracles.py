"""Slow twins, written as loops straight from the formulas."""

from __future__ import annotations

import math

import numpy as np


def cosines(z1: np.ndarray, z2: np.ndarray) -> list[list[float]]:
    """(B, N), a zero vector has cosine 0 with everything."""

    def one(x: np.ndarray, y: np.ndarray) -> float:
        length = math.sqrt(sum(a * a for a in x)) * math.sqrt(sum(b * b for b in y))
        return 0.0 if length == 0 else sum(a * b for a, b in zip(x, y, strict=True)) / length

    return [[one(x, y) for y in z2] for x in z1]


def contrastive_rows(logits: list[list[float]], targets: list[int], excluded: set[tuple[int, int]] = frozenset()):
    """-log softmax at the target, per row, without the excluded (row, column) pairs."""
    rows = []
    for i, row in enumerate(logits):
        kept = [x for j, x in enumerate(row) if (i, j) not in excluded or j == targets[i]]
        top = max(kept)
        rows.append(top + math.log(sum(math.exp(x - top) for x in kept)) - row[targets[i]])
    return rows


def infonce_rows(z1, z2, temperature, targets=None, excluded=frozenset()):
    s = cosines(z1, z2)
    targets = targets or list(range(len(z1)))
    return contrastive_rows([[x / temperature for x in row] for row in s], targets, excluded)


def focal_rows(
    z1, z2, temperature, m, targets=None, excluded=frozenset(), clamp_negatives=False, clamp_positives=False
):
    s = cosines(z1, z2)
    targets = targets or list(range(len(z1)))

    def logit(i: int, j: int) -> float:
        x = s[i][j]
        if j == targets[i]:
            x = max(x, 0.0) if clamp_positives else x
            return x * x / temperature
        x = max(x, -m / 2) if clamp_negatives else x
        return x * (x + m) / temperature

    return contrastive_rows([[logit(i, j) for j in range(len(z2))] for i in range(len(z1))], targets, excluded)


def numerical_gradient(function, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function of an array."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient
