"""What an encoder scored, and results.json: keys such as ``STS16/test/all/spearman``, x 100, and their metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, on_one_line
from .atomic import write_json
from .environment import library_versions

if TYPE_CHECKING:
    import numpy as np

RESULTS_FILE = "results.json"
FORMAT = 1
PROTOCOL = "sts-1: cosine, Spearman x 100, no regressor; all: the pairs concatenated; mean, wmean: of the subsets"
IDENTITY = ("weights_sha256", "pooler", "projection", "max_length", "whitening", "precision",
            "prompt", "prompt_template", "truncate_dim", "after_pooling")  # fmt: skip
NEEDED = {"protocol": str, "model": dict, "data": dict}  # what every reader of the metadata relies on
VERSIONS_OF = ("hf_focalcse", "torch", "transformers", "datasets", "evaluate", "scipy", "numpy")
SEVEN = {  # the tasks whose average papers print, in their order -> title
    **{name: name for name in ("STS12", "STS13", "STS14", "STS15", "STS16")},
    "STSBenchmark": "STS-B",
    "SICK-R": "SICK-R",
}
SUBSET = "subset:"
SIZE = "dim:"
LOWER_IS_BETTER = ("alignment", "uniformity")  # metrics of Wang & Isola (2020)
MAIN_METRICS = ("mrr",)  # that a set is known by and that have no aggregation, beside MAP: a row for each kind of task


@dataclass(frozen=True, order=True)
class ScoreKey:
    """``task/split/aggregation/metric``, the name of one score.

    aggregation: "all" (one correlation over all pairs), "mean" and "wmean" (of the subsets), "subset:NAME", "dim:N"
    (as the set's headline, of the first N dimensions of the vectors), or "" where the metric has none, as in
    ``STSBenchmark/test/alignment``. The average of the seven test sets is the task
    "average", whose split says whose SICK-R is in it.
    """

    task: str
    split: str
    aggregation: str
    metric: str

    @classmethod
    def parse(cls, text: str) -> ScoreKey:
        """Read ``text``.

        Raises:
            ValueError: it has fewer than three parts.
        """
        head, slash, metric = text.rpartition("/")
        task, *rest = head.split("/", 2)
        if not slash or not rest:
            raise ValueError(f"{text!r} is not the key of a score; one is task/split/aggregation/metric")
        return cls(task, rest[0], "".join(rest[1:]), metric)

    @classmethod
    def headline(cls, set_key: str) -> ScoreKey:
        """The score that a set such as ``STS16/test`` is known by: one Spearman correlation over all its pairs."""
        task, _, split = set_key.partition("/")
        return cls(task, split, "all", "spearman")

    def __str__(self) -> str:
        return "/".join(part for part in (self.task, self.split, self.aggregation, self.metric) if part)

    @property
    def set(self) -> str:
        """``STS16/test``: the key of the set in the metadata of results.json."""
        return f"{self.task}/{self.split}"

    @property
    def size(self) -> int | None:
        """To how many dimensions the vectors were cut for this score beside the others; None for whole vectors."""
        size = self.aggregation.removeprefix(SIZE)
        return int(size) if self.aggregation.startswith(SIZE) and size.isdecimal() else None

    def at(self, size: int | None) -> ScoreKey:
        """The key of this score for vectors cut to ``size`` dimensions; None: for whole vectors."""
        whole = "all" if self.metric == "spearman" else ""
        return replace(self, aggregation=whole if size is None else f"{SIZE}{size}")

    @property
    def is_headline(self) -> bool:
        """Whether a set is known by this score: Spearman over all pairs, MAP, or one of `MAIN_METRICS`."""
        if self.size is not None:
            return False
        of_pairs = (self.aggregation, self.metric) == ("all", "spearman")
        return of_pairs or self.is_ranking or (not self.aggregation and self.metric in MAIN_METRICS)

    @property
    def title(self) -> str:
        """What the metric is called in tables: Spearman, MAP, MRR; of others their name in the key."""
        return {"spearman": "Spearman", "mrr": "MRR"}.get(self.metric, "MAP" if self.is_ranking else self.metric)

    @property
    def aside(self) -> str:
        """`` (MRR)`` behind the name of a set; empty for Spearman, the usual one."""
        return "" if self.metric == "spearman" else f" ({self.title})"

    @property
    def is_average(self) -> bool:
        return self.task == "average"

    @property
    def is_of_a_subset(self) -> bool:
        return self.aggregation.startswith(SUBSET)

    @property
    def is_ranking(self) -> bool:
        """MAP of a set of queries, by the rules that follow ``map_``."""
        return self.metric.startswith("map_")

    @property
    def gain(self) -> str:
        """Where a training log keeps by how much this score is above the one before the first step."""
        return f"{self}/gain"

    @property
    def sick(self) -> SickSplit | None:
        """Whose SICK-R pairs this score is of or, for an average, whose are in it; None for every other set."""
        return next((sick for sick in SICK_SPLITS.values() if self.set in (sick.set, sick.average)), None)


@dataclass(frozen=True)
class SickSplit:
    """Whose pairs of SICK-R are the test set; the two do not compare."""

    name: str
    owner: str
    pairs: int

    @property
    def label(self) -> str:
        return f"{self.owner} ({self.pairs:,})"

    @property
    def set(self) -> str:
        return f"SICK-R/{self.name}-test"

    @property
    def average(self) -> str:
        """The set under whose key the average of the seven is kept."""
        return f"average/{self.name}-sickr"

    def test_sets(self) -> dict[str, str]:
        """The seven sets, in the order of papers -> their titles."""
        return {self.set if name == "SICK-R" else f"{name}/test": title for name, title in SEVEN.items()}


SICK_SPLITS = {sick.name: sick for sick in (SickSplit("mteb", "MTEB", 9927), SickSplit("senteval", "SentEval", 4927))}

PAPERS_FIRST = ("senteval", "mteb")  # whose SICK-R a reader of papers looks for first


def set_of(key: str) -> str:
    """``STS16/test`` of ``STS16/test/all/spearman``."""
    return "/".join(key.split("/")[:2])


def headline(set_key: str) -> str:
    """``STS16/test/all/spearman`` of ``STS16/test``."""
    return str(ScoreKey.headline(set_key))


def score_of(set_key: str, scores: Mapping[str, float]) -> str:
    """The key in ``scores`` that a set is known by: Spearman over its pairs, MAP of its queries, or MRR."""
    spearman = headline(set_key)
    return spearman if spearman in scores else next((k for k in headlines(scores) if set_of(k) == set_key), spearman)


def headlines(scores: Mapping[str, float]) -> dict[str, float]:
    """Those of ``scores`` that a set is known by (see `ScoreKey.is_headline`), or an average of these."""
    return {key: score for key, score in scores.items() if is_headline(key)}


def is_headline(key: str) -> bool:
    """Whether ``key`` is that of a headline score; False also for text that is no key, such as ``loss``."""
    return key.count("/") >= 2 and ScoreKey.parse(key).is_headline


def measures(keys: Iterable[str]) -> str:
    """``Spearman``, or ``Spearman or MRR``: what the scores of these keys are."""
    return " or ".join(dict.fromkeys(ScoreKey.parse(key).title for key in keys))


def averages(scores: Mapping[str, float], data: Mapping[str, Any]) -> dict[str, float]:
    """The mean of the seven, each rounded to two decimals first as in the field.

    There is none where a set is missing or where the sets are not all read as the same kind of text. There is one for
    each size of vectors of which there are all seven.
    """
    found = {}
    for sick in SICK_SPLITS.values():
        sets = list(sick.test_sets())
        if all(key in data for key in sets) and len({data[key]["text"] for key in sets}) == 1:
            for size in (None, *sizes_of(scores)):
                keys = [str(ScoreKey.headline(key).at(size)) for key in sets]
                if all(key in scores for key in keys):
                    seven = [round(scores[key], 2) for key in keys]
                    average = str(ScoreKey.headline(sick.average).at(size))
                    found[average] = round(sum(seven) / len(seven), 6)
    return found


def sizes_of(scores: Iterable[str]) -> list[int]:
    """The sizes of vectors that keys name beside the whole ones, the largest first."""
    return sorted({size for key in scores if (size := ScoreKey.parse(key).size) is not None}, reverse=True)


@dataclass
class Results:
    """Scores by key (see `ScoreKey`), correlations x 100, and the metadata: what they were measured on and with.

    For sets that were measured just now there is also what a paired bootstrap needs. pairs: set -> (2, N) gold score
    and cosine of every pair. units: score -> (N,) values x 100 whose mean it is, one of each query or sentence; the
    set's description says which (``unit``). texts: set -> (N,) fingerprints of these pairs or units.
    """

    scores: dict[str, float]
    metadata: dict[str, Any]
    pairs: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    units: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    texts: dict[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, scores: dict[str, float], data: dict[str, Any], model: Mapping[str, Any] | None) -> Results:
        """Measured here and now; data: set -> its description."""
        return cls(
            scores,
            {
                "format": FORMAT,
                "protocol": PROTOCOL,
                "model": dict(model or {}),
                "data": data,
                "versions": library_versions(VERSIONS_OF),
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            },
        )

    def write(self, path: str | Path) -> None:
        """Write the scores at the top level and ``metadata`` last; ValueError where a score is NaN or infinite."""
        write_json(path, {**self.scores, "metadata": self.metadata}, strict=True)

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """Read a results.json.

        Raises:
            UserError: it is missing, damaged, of another format, or does not say what was measured.
        """
        try:
            scores = json.loads(Path(path).read_text(encoding="utf-8"))
            details = scores.pop("metadata")
            known = details["format"] == FORMAT
            for key, score in scores.items():
                ScoreKey.parse(key)
                if not isinstance(score, int | float) or isinstance(score, bool) or not math.isfinite(score):
                    raise ValueError(f"the score {key} is {score!r}")
        except FileNotFoundError:
            raise UserError(f"no such file: {path}; focalcse eval writes it") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = on_one_line(error)
            raise UserError(f"{path} is not a results.json of focalcse ({type(error).__name__}: {said})") from error
        if not known:
            raise UserError(f"{path} has format {details['format']}, this version reads {FORMAT}; evaluate again")
        for key, kind in NEEDED.items():
            if not isinstance(details.get(key), kind):
                raise UserError(
                    f"{path} does not say what its scores were measured on: its metadata lacks {key}; evaluate again"
                )
        for name, of in details["data"].items():
            if not (isinstance(of, dict) and "sha256" in of):
                raise UserError(f"{path} does not say which pairs of {name} were scored (sha256); evaluate again")
        return cls(scores, details)

    def merge(self, older: Results) -> Results:
        """These results, with those of ``older`` for sets that were not measured again.

        ``older`` is left out where it may be of another model or protocol.
        """
        mine, theirs = self.metadata, older.metadata
        same_model = all(mine["model"].get(key) == theirs["model"].get(key) for key in IDENTITY)
        if not (same_model and mine["model"].get("weights_sha256") and mine["protocol"] == theirs["protocol"]):
            return self
        data = theirs["data"] | mine["data"]
        missing = theirs["data"].keys() - mine["data"].keys()
        kept = {key: score for key, score in older.scores.items() if set_of(key) in missing}
        new = {key: score for key, score in self.scores.items() if set_of(key) in mine["data"]}
        details = {**mine, "data": data}
        if others := theirs.get("comparisons", {}) | mine.get("comparisons", {}):
            details["comparisons"] = others
        return Results({**kept, **new, **averages(kept | new, data)}, details)

    @classmethod
    def join(cls, parts: Sequence[Results]) -> Results:
        """Results of one model on different sets as one."""
        scores = {key: score for part in parts for key, score in part.scores.items()}
        data = {key: of for part in parts for key, of in part.metadata["data"].items()}
        pairs, units, texts = (
            {key: of for part in parts for key, of in getattr(part, name).items()}
            for name in ("pairs", "units", "texts")
        )
        return cls(scores | averages(scores, data), {**parts[0].metadata, "data": data}, pairs, units, texts)
