"""Encode each sentence once and score every STS set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from tqdm.auto import tqdm

from ..data.graded_pairs import PairSet
from ..errors import UserError
from ..runs.scores import Results, averages
from .metrics import alignment, cosine, uniformity
from .tasks import STS_TASKS

BLOCK = 4096  # sentences encoded at a time: enough to batch those of equal length, and the bar moves after each
RANDOM_PAIRS = 20_000
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
BINS = np.linspace(-1, 1, 41)
FLAT = 1e-6  # a smaller spread of cosines is rounding in float32


class Encoder(Protocol):
    def encode(self, texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D)."""


def evaluate_sts(
    encoder: Encoder, tasks: Sequence[PairSet], progress: bool = True, model: Mapping[str, Any] | None = None
) -> Results:
    """Score ``encoder`` on ``tasks`` (see ``load_tasks`` and ``read_pairs``); ``model`` is kept in the metadata.

    Raises:
        UserError: there are no tasks, or vectors of the encoder are not finite, zero, or all alike.
    """
    from .sts_correlation.sts_correlation import STSCorrelation  # imports `evaluate`: slow

    if not tasks:
        raise UserError(f"no set to evaluate on; name at least one of {', '.join(STS_TASKS)}")
    metric = STSCorrelation(keep_in_memory=True)
    rows = {text: row for row, text in enumerate(dict.fromkeys(text for task in tasks for text in task.texts()))}
    vectors = encode_once(encoder, rows, progress)
    scores: dict[str, float] = {}
    spread: dict[str, dict[str, Any]] = {}
    pairs: dict[str, np.ndarray] = {}
    for task in tasks:
        first, second = np.array([[rows[pair.sentence1], rows[pair.sentence2]] for pair in task.pairs]).T
        pairs[task.key] = np.stack([task.scores, cosine(vectors[first], vectors[second])])
        scores |= _correlations(task, pairs[task.key][1], metric)
        if task.aligned_above is not None:
            positive = task.scores > task.aligned_above
            if positive.any():
                scores[f"{task.key}/alignment"] = alignment(vectors[first[positive]], vectors[second[positive]])
            # published figures count every sentence as often as the set holds it
            scores[f"{task.key}/uniformity"] = uniformity(vectors[np.concatenate([first, second])])
        spread[task.key] = _spread(task, vectors, first, second)
    data = {task.key: task.describe() | {"cosines": spread[task.key]} for task in tasks}
    scores = {key: round(score, 6) for key, score in scores.items()} | averages(scores, data)
    texts = {task.key: task.fingerprints() for task in tasks}
    return replace(Results.of(scores, data, model), pairs=pairs, texts=texts)


def encode_once(encoder: Encoder, rows: Mapping[str, int], progress: bool) -> np.ndarray:
    """Encode each text once, longest first. rows: text -> its row in the (N, D) that is returned.

    Raises:
        UserError: a vector is zero or not finite, or the encoder does not return (N, D).
    """
    ordered = sorted(rows, key=len, reverse=True)
    vectors = np.empty((len(ordered), 0))
    with tqdm(total=len(ordered), desc="Encoding", unit=" sentences", disable=not progress, leave=False) as bar:
        for start in range(0, len(ordered), BLOCK):
            texts = ordered[start : start + BLOCK]
            block = np.asarray(encoder.encode(texts))
            if block.ndim != 2 or len(block) != len(texts):
                raise UserError(
                    f"the encoder returned an array {block.shape} for {len(texts)} sentences; it must be (N, D)"
                )
            if start == 0:
                vectors = np.empty((len(ordered), block.shape[1]), dtype=block.dtype)
            vectors[[rows[text] for text in texts]] = block
            bar.update(len(texts))
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1))
    if bad.size:
        what = "zero" if np.isfinite(vectors[bad[0]]).all() else "not finite"
        raise UserError(
            f"the encoder's vector of {list(rows)[bad[0]]!r} is {what}, as for {bad.size} of {len(rows)} sentences: "
            "its weights are damaged, or half precision overflowed (leave out --bf16)"
        )
    return vectors


def require_spread(key: str, cosines: np.ndarray) -> None:
    """Check that the cosines of a set differ.

    Raises:
        UserError: they are all alike.
    """
    if np.ptp(cosines) < FLAT:
        raise UserError(
            f"all {len(cosines)} cosines of {key} equal {cosines[0]:.6f}: the encoder has collapsed, "
            "it gives every sentence the same direction; evaluate another checkpoint, or train with a lower rate"
        )


def _correlations(task: PairSet, cosines: np.ndarray, metric: Any) -> dict[str, float]:
    """Correlations x 100 of one set: over all pairs, of each subset, and the means of the subsets."""
    require_spread(task.key, cosines)

    def correlate(rows: np.ndarray, what: str) -> dict[str, float]:
        try:
            found = metric.compute(predictions=cosines[rows], references=task.scores[rows])
        except ValueError as error:
            raise UserError(f"{what}: {error}") from error
        return {name: 100 * value for name, value in found.items()}

    scores = {f"{task.key}/all/{name}": value for name, value in correlate(np.arange(len(cosines)), task.key).items()}
    subset = np.array([pair.subset for pair in task.pairs])
    names = list(dict.fromkeys(subset.tolist()))
    if len(names) > 1 and all(names):
        each = [correlate(subset == name, f"{task.key}, subset {name}")["spearman"] for name in names]
        scores |= {f"{task.key}/subset:{name}/spearman": score for name, score in zip(names, each, strict=True)}
        scores[f"{task.key}/mean/spearman"] = float(np.mean(each))
        sizes = [np.count_nonzero(subset == name) for name in names]
        scores[f"{task.key}/wmean/spearman"] = float(np.average(each, weights=sizes))
    return scores


def _spread(task: PairSet, vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """The distribution of cosines, of random pairs of sentences and of pairs rated low and high.

    Low and high are the lowest and the highest fifth of the scale. Of each there are counts in bins of 0.05 from -1 to
    1, and of the random pairs quantiles; of STS-B, rated 0 to 5, also the counts of each band of the scale.
    """
    rows = np.unique(np.concatenate([first, second]))
    one, other = np.random.default_rng(0).choice(rows, (2, RANDOM_PAIRS))
    apart = one != other
    values = {"random": cosine(vectors[one[apart]], vectors[other[apart]])}
    low, high = np.quantile(task.scores, [0.2, 0.8])
    labelled = cosine(vectors[first], vectors[second])
    values |= {"lowest fifth": labelled[task.scores <= low], "highest fifth": labelled[task.scores >= high]}
    quantiles = {f"{q:g}": round(float(np.quantile(values["random"], q)), 4) for q in QUANTILES}
    found = {"random_pairs": int(apart.sum()), "quantiles": quantiles, "counts": _counts(values)}
    if task.aligned_above is not None:
        band = np.clip(task.scores.astype(int), 0, 4)  # 4 to 5 is one band
        found["bands"] = _counts({f"{low}-{low + 1}": labelled[band == low] for low in range(5)})
    return found


def _counts(values: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: np.histogram(np.clip(of, -1, 1), BINS)[0].tolist() for name, of in values.items()}
