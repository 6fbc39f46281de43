"""Pairs of sentences with a score that people gave them: how a set is read from a file, and how it is scored."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from ..data.formats import read_records
from ..errors import UserError
from ..runs.scores import headline
from .metrics import alignment, average_precision, cosine, uniformity
from .protocol import Scored, Vectors, fingerprints, require_spread

RANDOM_PAIRS = 20_000
COLUMNS = ("sentence1", "sentence2", "score")  # of labelled pairs
OTHER_NAMES = {  # what data sets of pairs call them
    "sentence1": ("question1", "text1", "sentence_A"),
    "sentence2": ("question2", "text2", "sentence_B"),
    "score": ("label", "is_duplicate", "similarity_score", "relatedness_score", "similarity"),
}
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
BINS = np.linspace(-1, 1, 41)
REVERSED = -30.0  # Spearman below which the scores are more likely distances
SAID: set[tuple[str, str]] = set()
logger = logging.getLogger(__name__)


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
        return fingerprints(f"{pair.sentence1}\0{pair.sentence2}" for pair in self.pairs)

    def score(self, vectors: Vectors) -> Scored:
        """Correlations over all pairs and of each subset, alignment and uniformity where positives are defined.

        Raises:
            UserError: all cosines are alike, or a correlation is undefined.
        """
        first = vectors.of([pair.sentence1 for pair in self.pairs])  # (N, D)
        second = vectors.of([pair.sentence2 for pair in self.pairs])
        cosines = cosine(first, second)
        scores = _correlations(self, cosines) | self.of_two_labels(cosines)
        say_of(self, scores)
        if self.aligned_above is not None:
            positive = self.scores > self.aligned_above
            if positive.any():
                scores[f"{self.key}/alignment"] = alignment(first[positive], second[positive])
            # published figures count every sentence as often as the set holds it
            scores[f"{self.key}/uniformity"] = uniformity(np.concatenate([first, second]))
        spread = _spread(self, vectors.of(list(dict.fromkeys(self.texts()))), cosines)
        return Scored(scores, {"cosines": spread}, np.stack([self.scores, cosines]))

    def of_two_labels(self, cosines: np.ndarray) -> dict[str, float]:
        """Where pairs are labelled with two values: the area under the ROC curve and the average precision of ranking
        by cosine, x 100. Spearman cannot reach 100 there: half of all comparisons are ties."""
        positive = self.scores == self.scores.max()
        if len(np.unique(self.scores)) != 2:
            return {}
        ranks = rankdata(cosines)
        n, m = np.count_nonzero(positive), np.count_nonzero(~positive)
        auc = (ranks[positive].sum() - n * (n + 1) / 2) / (n * m)
        ap = average_precision(positive, cosines, tied="together")
        return {f"{self.key}/all/auc": 100 * float(auc), f"{self.key}/all/ap": 100 * ap}

    @property
    def headline(self) -> str:
        """``STS16/test/all/spearman``."""
        return headline(self.key)

    @property
    def key(self) -> str:
        """``STS16/test``: how every score of this set begins."""
        return f"{self.task}/{self.split}"

    def describe(self) -> dict[str, Any]:
        """What results.json says about the data; the hash covers subset, score and text of the pairs in order."""
        content = "\n".join("\t".join(map(str, pair)) for pair in self.pairs)
        return {
            "unit": "pairs",
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

    It has the columns sentence1, sentence2 and score, or those of `OTHER_NAMES`. A column subset, if there is one,
    makes scores of each subset. The key of the set is ``<file name>/file``.

    Raises:
        UserError: the file cannot be read, or lacks a column; with file and line.
    """
    path = Path(path)
    rows = read_records(path, COLUMNS, OTHER_NAMES)
    return PairSet(path.name.split(".")[0], "file", tuple(pair_of(*row) for row in rows), source=str(path))


# ---- scores


@cache
def _metric() -> Any:
    from .sts_correlation.sts_correlation import STSCorrelation  # imports `evaluate`: slow

    return STSCorrelation(keep_in_memory=True)


def say_of(task: PairSet, scores: Mapping[str, float]) -> None:
    """Log what lets a score look worse than the encoder is, once for a set."""
    spearman = scores[task.headline]
    said = []
    if f"{task.key}/all/auc" in scores:
        most = 100 * math.sqrt(3 * (share := float(np.mean(task.scores == task.scores.max()))) * (1 - share))
        said.append(
            f"the labels of {task.source} have two values, with which Spearman reaches {most:.0f} at most; see its "
            "auc and ap (area under the ROC curve, average precision), which reach 100"
        )
    if spearman < REVERSED:
        said.append(
            f"Spearman on {task.source} is {spearman:.2f}: its scores seem to be distances, lower for more similar "
            "pairs; a score must be higher for more similar ones"
        )
    for text in said:
        if (task.source, text[:40]) not in SAID:
            SAID.add((task.source, text[:40]))
            logger.warning("%s", text)


def _correlations(task: PairSet, cosines: np.ndarray) -> dict[str, float]:
    """Correlations x 100 of one set: over all pairs, of each subset, and the means of the subsets."""
    require_spread(task.key, cosines)

    def correlate(rows: np.ndarray, what: str) -> dict[str, float]:
        try:
            found = _metric().compute(predictions=cosines[rows], references=task.scores[rows])
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


def _spread(task: PairSet, vectors: np.ndarray, labelled: np.ndarray) -> dict[str, Any]:
    """The distribution of cosines, of random pairs of sentences and of pairs rated low and high.

    vectors: of the distinct sentences; labelled: the cosines of the pairs. Low and high are the lowest and the highest
    fifth of the scale. Of each there are counts in bins of 0.05 from -1 to 1, and of the random pairs quantiles; of
    STS-B, rated 0 to 5, also the counts of each band of the scale.
    """
    one, other = np.random.default_rng(0).choice(len(vectors), (2, RANDOM_PAIRS))
    apart = one != other
    values = {"random": cosine(vectors[one[apart]], vectors[other[apart]])}
    low, high = np.quantile(task.scores, [0.2, 0.8])
    values |= {"lowest fifth": labelled[task.scores <= low], "highest fifth": labelled[task.scores >= high]}
    quantiles = {f"{q:g}": round(float(np.quantile(values["random"], q)), 4) for q in QUANTILES}
    found = {"random_pairs": int(apart.sum()), "quantiles": quantiles, "counts": _counts(values)}
    if task.aligned_above is not None:
        band = np.clip(task.scores.astype(int), 0, 4)  # 4 to 5 is one band
        found["bands"] = _counts({f"{low}-{low + 1}": labelled[band == low] for low in range(5)})
    return found


def _counts(values: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: np.histogram(np.clip(of, -1, 1), BINS)[0].tolist() for name, of in values.items()}
