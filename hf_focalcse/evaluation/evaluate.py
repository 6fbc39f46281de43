"""Encode each sentence once, score every STS set, keep the scores in results.json."""

from __future__ import annotations

import json
import os
import platform
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tqdm.auto import tqdm

from ..data.graded_pairs import PairSet
from ..errors import UserError
from .metrics import alignment, cosine, uniformity
from .tasks import STS_TASKS

FORMAT = 1
PROTOCOL = "sts-1: cosine, Spearman x 100, no regressor; all: the pairs concatenated; mean, wmean: of the subsets"
IDENTITY = ("weights_sha256", "pooler", "projection", "max_length", "whitening", "precision")
NEEDED = {"protocol": str, "model": dict, "data": dict}  # in the metadata: what every reader looks at
SICK_SPLITS = {"mteb": "MTEB (9,927)", "senteval": "SentEval (4,927)"}
PACKAGES = ("hf_focalcse", "torch", "transformers", "datasets", "evaluate", "scipy", "numpy")
BLOCK = 4096  # sentences between two movements of the progress bar: enough to batch those of equal length
RANDOM_PAIRS = 20_000
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
BINS = np.linspace(-1, 1, 41)
FLAT = 1e-6  # a spread of cosines below float32's own noise says nothing


class Encoder(Protocol):
    def encode(self, texts: list[str]) -> np.ndarray:
        """N sentences -> (N, D)."""


def evaluate_sts(
    encoder: Encoder, tasks: Sequence[PairSet], progress: bool = True, model: Mapping[str, Any] | None = None
) -> Results:
    """Score ``encoder`` on ``tasks`` (see ``load_tasks`` and ``read_pairs``); ``model`` is kept in the metadata.

    Raises UserError for an encoder whose vectors are not finite, are zero or are all alike.
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
            # every sentence as often as the set holds it, as published figures have it
            scores[f"{task.key}/uniformity"] = uniformity(vectors[np.concatenate([first, second])])
        spread[task.key] = _spread(task, vectors, first, second)
    data = {task.key: task.describe() | {"cosines": spread[task.key]} for task in tasks}
    scores = {key: round(score, 6) for key, score in scores.items()} | _averages(scores, data)
    texts = {task.key: task.fingerprints() for task in tasks}
    return replace(Results.of(scores, data, model), pairs=pairs, texts=texts)


@dataclass
class Results:
    """Scores under keys such as ``STS16/test/all/spearman`` (correlations x 100), and what they were measured on.

    pairs: (2, N) gold score and cosine of every pair of a set, where they were measured just now. texts: (N,) the
    fingerprints of these pairs.
    """

    scores: dict[str, float]
    metadata: dict[str, Any]
    pairs: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    texts: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, scores: dict[str, float], data: dict[str, Any], model: Mapping[str, Any] | None) -> Results:
        """Measured here and now; data: set -> what it is."""
        return cls(
            scores,
            {
                "format": FORMAT,
                "protocol": PROTOCOL,
                "model": dict(model or {}),
                "data": data,
                "versions": {"python": platform.python_version()} | _versions(),
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            },
        )

    def write(self, path: str | Path) -> None:
        """results.json, whole or not at all: scores at the top level, ``metadata`` last."""
        path = Path(path)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        content = json.dumps({**self.scores, "metadata": self.metadata}, indent=2, ensure_ascii=False, allow_nan=False)
        try:
            draft.write_text(content + "\n", encoding="utf-8")
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: str | Path) -> Results:
        try:
            scores = json.loads(Path(path).read_text(encoding="utf-8"))
            details = scores.pop("metadata")
            known = details["format"] == FORMAT
        except FileNotFoundError:
            raise UserError(f"no such file: {path}; focalcse eval writes it") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is no results.json of focalcse ({type(error).__name__}: {error})") from error
        if not known:
            raise UserError(f"{path} has format {details['format']}, this version reads {FORMAT}; evaluate again")
        for key, kind in NEEDED.items():
            if not isinstance(details.get(key), kind):
                raise UserError(
                    f"{path} does not say of what its scores are: its metadata lacks {key}; evaluate again"
                )
        for name, of in details["data"].items():
            if not (isinstance(of, dict) and "sha256" in of):
                raise UserError(f"{path} does not say which pairs of {name} were scored (sha256); evaluate again")
        return cls(scores, details)

    def merge(self, older: Results) -> Results:
        """These results, and older's for sets not measured again, if model and protocol are known to be the same."""
        mine, theirs = self.metadata, older.metadata
        same_model = all(mine["model"].get(key) == theirs["model"].get(key) for key in IDENTITY)
        if not (same_model and mine["model"].get("weights_sha256") and mine["protocol"] == theirs["protocol"]):
            return self
        data = theirs["data"] | mine["data"]
        missing = theirs["data"].keys() - mine["data"].keys()
        kept = {key: score for key, score in older.scores.items() if _set_of(key) in missing}
        new = {key: score for key, score in self.scores.items() if _set_of(key) in mine["data"]}
        details = {**mine, "data": data}
        if others := theirs.get("comparisons", {}) | mine.get("comparisons", {}):
            details["comparisons"] = others
        return Results({**kept, **new, **_averages(kept | new, data)}, details)

    @classmethod
    def join(cls, parts: Sequence[Results]) -> Results:
        """Results of the same model on different sets as one."""
        scores = {key: score for part in parts for key, score in part.scores.items()}
        data = {key: of for part in parts for key, of in part.metadata["data"].items()}
        pairs, texts = (
            {key: of for part in parts for key, of in getattr(part, name).items()} for name in ("pairs", "texts")
        )
        return cls(scores | _averages(scores, data), {**parts[0].metadata, "data": data}, pairs, texts)

    def table(self) -> str:
        """For the terminal, at most 100 columns."""
        data, model = self.metadata["data"], self.metadata["model"]
        settings = ", ".join(f"{key} {model[key]}" for key in IDENTITY[1:] if key in model)
        blocks = [[str(model.get("name_or_path", "encoder")) + (f" ({settings})" if settings else "")]]

        rows = {f"all, SICK-R as in {of}": self._row("all", sick) for sick, of in SICK_SPLITS.items()}
        rows |= {"mean of subsets": self._row("mean"), "mean of subsets by pairs": self._row("wmean")}
        rows = {name: row for name, row in rows.items() if any(row)}
        if rows:
            titles = [*(task.title for task in STS_TASKS.values()), "Avg"]
            blocks.append([_line("Spearman x 100", titles), *(_line(name, row) for name, row in rows.items())])

        shown = {key for sick in SICK_SPLITS for key in _test_sets(sick)}
        cells = {key: [self._score(key, "all/spearman"), f"{of['pairs']:,}"] for key, of in data.items()}
        more = [_line(key, row) for key, row in cells.items() if key not in shown and row[0]]
        if more:
            blocks.append([_line("Other sets", ["Spearman", "pairs"]), *more])

        ranked = [_line(f"{key}, {of['scorer']}", self._ranked(key, of)) for key, of in data.items() if "scorer" in of]
        if ranked:
            titles = ["MAP", "MRR", "IR MAP", "IR MRR", "queries"]
            blocks.append([_line("Reranking x 100 (IR: search engine)", titles), *ranked])

        cells = {key: [self._score(key, name, 4) for name in ("alignment", "uniformity")] for key in data}
        shape = [_line(key, row) for key, row in cells.items() if any(row)]
        if shape:
            blocks.append([_line("Lower is better", ["align", "uniform"]), *shape])

        subsets = []
        for key, of in data.items():
            each = {name: self._score(key, f"subset:{name}/spearman") for name in of["subsets"]}
            if any(each.values()):
                scored = (f"{name}\xa0{score}\xa0({of['subsets'][name]})" for name, score in each.items())
                subsets += _wrap(f"{key}: {', '.join(scored)}")
        blocks += [subsets, [line for note in self._notes() for line in _wrap(note)]]
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def _score(self, key: str, name: str, digits: int = 2) -> str:
        score = self.scores.get(f"{key}/{name}")
        return "" if score is None else f"{score:.{digits}f}"

    def _row(self, aggregation: str, sick: str = "mteb") -> list[str]:
        """The seven scores and their average; nothing where SICK-R alone would tell the row from the other split's."""
        average = self._score(f"average/{sick}-sickr", f"{aggregation}/spearman")
        row = [self._score(key, f"{aggregation}/spearman") for key in _test_sets(sick)]
        return [*row, average] if sick == "mteb" or row[-1] else []

    def _ranked(self, key: str, of: Mapping[str, Any]) -> list[str]:
        """MAP and MRR of the encoder and of the search engine, and how many queries they are the mean of."""
        names = [f"{metric}_{of['scorer']}" for metric in ("map", "mrr")]
        engine = [f"{of['search_engine'][name]:.2f}" if of["search_engine"] else "" for name in names]
        return [*(self._score(key, name) for name in names), *engine, f"{of['queries_scored']:,}"]

    def _notes(self) -> Iterator[str]:
        data = self.metadata["data"]
        rules = {of["scorer"]: of["rule"] for of in data.values() if "scorer" in of}
        yield from (f"{name}: {rule}." for name, rule in rules.items())
        for key, of in data.items():
            if "scorer" in of:
                yield (
                    f"{key}: of {of['queries']:,} queries {of['without_positive']:,} have no positive and "
                    f"{of['without_negative']:,} no negative."
                )
        if any(key.startswith("average/") for key in self.scores):
            yield "Avg: the mean of the seven scores, each rounded to two decimals first."
        for key, of in data.items():
            if of["expected_pairs"] not in (None, of["pairs"]):
                yield (
                    f"{key}: {of['pairs']:,} pairs where the published set has {of['expected_pairs']:,}; "
                    "its scores do not compare with published ones."
                )
            if of["empty_sentences"]:
                yield f"{key}: {of['empty_sentences']:,} empty sentences, scored as they are."
        if any(of["text"] == "senteval" for of in data.values()):
            yield "Text: tokenised (and mostly lower-cased) by SentEval; scores on raw text, as in MTEB, differ."


def encode_once(encoder: Encoder, rows: Mapping[str, int], progress: bool) -> np.ndarray:
    """Each text of ``rows`` once, longest first -> (N, D) at its row; UserError for a vector without a direction."""
    ordered = sorted(rows, key=len, reverse=True)
    vectors = np.empty((len(ordered), 0))
    with tqdm(total=len(ordered), desc="Encoding", unit=" sentences", disable=not progress, leave=False) as bar:
        for start in range(0, len(ordered), BLOCK):
            texts = ordered[start : start + BLOCK]
            block = np.asarray(encoder.encode(texts))
            if block.ndim != 2 or len(block) != len(texts):
                raise UserError(f"the encoder gave an array {block.shape} for {len(texts)} sentences, not (N, D)")
            if start == 0:
                vectors = np.empty((len(ordered), block.shape[1]), dtype=block.dtype)
            vectors[[rows[text] for text in texts]] = block
            bar.update(len(texts))
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1))
    if bad.size:
        what = "zero" if np.isfinite(vectors[bad[0]]).all() else "not finite"
        raise UserError(
            f"the encoder's vector of {list(rows)[bad[0]]!r} is {what}, as for {bad.size} of {len(rows)} sentences: "
            "its weights are damaged or half precision overflowed"
        )
    return vectors


def require_spread(key: str, cosines: np.ndarray) -> None:
    """UserError where all cosines of a set are alike."""
    if np.ptp(cosines) < FLAT:
        raise UserError(
            f"all {len(cosines)} cosines of {key} equal {cosines[0]:.6f}: the encoder has collapsed, "
            "it gives every sentence the same direction"
        )


def _correlations(task: PairSet, cosines: np.ndarray, metric: Any) -> dict[str, float]:
    """Of one set: all (and Pearson), each subset, their mean and their mean weighted by pairs; x 100."""
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
    """How cosines lie: of random sentences of the set, and of its pairs in the lowest and highest fifth of the scale.

    Counts of each in bins of 0.05 from -1 to 1, and quantiles of the random pairs; of STS-B, rated 0 to 5, also
    the counts of each band of the scale.
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
        band = np.clip(task.scores.astype(int), 0, 4)  # a score of 5 is in the last one
        found["bands"] = _counts({f"{low}-{low + 1}": labelled[band == low] for low in range(5)})
    return found


def _counts(values: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: np.histogram(np.clip(of, -1, 1), BINS)[0].tolist() for name, of in values.items()}


def _test_sets(sick: str) -> list[str]:
    return [f"{name}/{f'{sick}-' if name == 'SICK-R' else ''}test" for name in STS_TASKS]


def _averages(scores: Mapping[str, float], data: Mapping[str, Any]) -> dict[str, float]:
    """The mean of the seven, each rounded to two decimals first as in the field; none for mixed texts or a gap."""
    found = {}
    for sick in SICK_SPLITS:
        sets = _test_sets(sick)
        if all(key in data for key in sets) and len({data[key]["text"] for key in sets}) == 1:
            seven = [round(scores[f"{key}/all/spearman"], 2) for key in sets]
            found[f"average/{sick}-sickr/all/spearman"] = round(sum(seven) / len(seven), 6)
    return found


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # run from a checkout, or an encoder that needs no torch
    return found


def _set_of(key: str) -> str:
    """``STS16/test`` of ``STS16/test/all/spearman``."""
    return "/".join(key.split("/")[:2])


def _wrap(text: str) -> list[str]:
    """Lines of at most 100 columns, not broken at hyphens or no-break spaces."""
    lines = textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name[:35]:36}" + "".join(f"{cell or '-':>8}" for cell in cells)
