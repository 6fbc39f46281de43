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


# ---- DCLR


def non_uniformity(z1, z2, noise, tau_u):
    """Mean over i of -log( e^(cos(h_i, h_i+)/tau_u) / sum_k e^(cos(h_i, n_k)/tau_u) )."""
    s, n = cosines(z1, z2), cosines(z1, noise)
    rows = [math.log(sum(math.exp(x / tau_u) for x in n[i])) - s[i][i] / tau_u for i in range(len(z1))]
    return sum(rows) / len(rows)


def ascended(noise, steps, size, objective):
    """n <- n + size * g / |g| for each vector, ``steps`` times, g the numerical gradient of ``objective(noise)``."""
    for _ in range(steps):
        gradient = numerical_gradient(objective, noise)
        noise = np.array(
            [n + size * g / math.sqrt(sum(x * x for x in g)) for n, g in zip(noise, gradient, strict=True)]
        )
    return noise


def dclr_rows(
    z1, z2, noise, temperature, reference=None, reference_noise=None, phi=None, m=None, targets=None,
    excluded=frozenset(),
):  # fmt: skip
    """-log( e^(l_ii) / (e^(l_ii) + sum of a_ij e^(l_ij) over the other candidates and noise) ), a = 0 from phi on."""
    targets = targets or list(range(len(z1)))
    s, n = cosines(z1, z2), cosines(z1, noise) if len(noise) else [[] for _ in z1]

    def logit(x: float, positive: bool) -> float:
        if m is None:
            return x / temperature
        return (x * x if positive else x * (x + m)) / temperature

    rows = []
    for i, target in enumerate(targets):
        own = math.exp(logit(s[i][target], True))
        total = own
        for j in range(len(z2)):
            weight = 0 if reference is not None and reference[i][j] >= phi else 1
            if j != target and (i, j) not in excluded:
                total += weight * math.exp(logit(s[i][j], False))
        for k in range(len(noise)):
            weight = 0 if reference_noise is not None and reference_noise[i][k] >= phi else 1
            total += weight * math.exp(logit(n[i][k], False))
        rows.append(-math.log(own / total))
    return rows


def released_objective(z1, z2, noise, temperature):
    """Cross entropy over candidates and noise together, mean over the anchors."""
    s, n = cosines(z1, z2), cosines(z1, noise)
    return sum(
        contrastive_rows([[x / temperature for x in s[i] + n[i]] for i in range(len(z1))], range(len(z1)))
    ) / len(z1)


def released_rows(z1, z2, noise, temperature, reference, phi):
    """Mean over the cells of a row of the binary cross entropy of the softmax; weights multiply the logits."""
    s, n = cosines(z1, z2), cosines(z1, noise)
    rows = []
    for i in range(len(z1)):
        weights = [0 if reference[i][j] / temperature > 20 * phi and j != i else 1 for j in range(len(z2))]
        logits = [w * x / temperature for w, x in zip(weights, s[i], strict=True)] + [x / temperature for x in n[i]]
        total = sum(math.exp(x) for x in logits)
        cells = [math.exp(x) / total for x in logits]
        rows.append(sum(-math.log(p if j == i else 1 - p) for j, p in enumerate(cells)) / len(cells))
    return rows


def divergence_rows(z1, z2, reference, temperature):
    """sum_j t_j log(t_j / s_j), t and s the softmax over the candidates of the reference and of the encoder."""

    def softmax(row):
        total = sum(math.exp(x / temperature) for x in row)
        return [math.exp(x / temperature) / total for x in row]

    return [
        sum(t * math.log(t / x) for t, x in zip(softmax(r), softmax(c), strict=True))
        for r, c in zip(reference, cosines(z1, z2), strict=True)
    ]
