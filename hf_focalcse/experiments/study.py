"""Groups of runs that differ only in the seed, and what may be compared between the groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from ..evaluation.verdict import counted
from ..runs.record import RunRecord
from ..runs.scores import SICK_SPLITS, ScoreKey, headline, headlines, set_of

DEV = headline("STSBenchmark/dev")


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation (n - 1) of n runs that differ in the seed; ``sd`` is None for one run."""

    n: int
    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary | None:
        if not values:
            return None
        return cls(len(values), float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean by Student's t; for one run, the mean itself."""
        if not self.sd:
            return self.mean, self.mean
        low, high = stats.t.interval(0.95, self.n - 1, self.mean, self.sd / math.sqrt(self.n))
        return float(low), float(high)

    def against(self, other: float, name: str) -> str:
        """How the mean lies to the score of ``name``, which has no seeds: above or below only where its interval over
        seeds leaves that score out."""
        change, (low, high) = self.mean - other, self.interval()
        if self.sd is None:
            return f"{change:+.2f} against {name} ({other:.2f}; one seed, no interval)"
        said = f"{name} ({other:.2f}; 95 % over seeds {low - other:+.2f} to {high - other:+.2f})"
        if low <= other <= high:
            return f"not told apart from {said}"
        return f"{abs(change):.2f} {'above' if change > 0 else 'BELOW'} {said}"


@dataclass(frozen=True)
class ScoredEncoder:
    """An encoder with its scores by the keys of results.json. factors: every setting that may change a score."""

    name: str
    seed: int
    factors: dict[str, str]
    scores: dict[str, float]
    before: dict[str, float]  # scores before training, with the pooling of the run
    curves: dict[str, dict[int, float]]  # key -> step -> value, step 0 before training
    sets: dict[str, Any]  # what results.json says of each set, with the counts of its cosines
    budget: int  # training sentences seen, repetitions included
    facts: dict[str, str] = field(default_factory=dict)  # the origin and the costs of the run
    loss_settings: frozenset[str] = frozenset()  # the factors that only its loss has
    text_sha256: str = ""  # of the training text; empty for a sample, which depends on the seed
    models: dict[str, tuple[str, str]] = field(default_factory=dict)  # encoder, reference -> (path, what is shown)
    notes: tuple[str, ...] = ()
    published: dict[str, float] = field(default_factory=dict)  # scores as published, where that is another pooling
    before_is: str = "before training"  # or "as published", where the run trains the pooling that is recorded
    record: RunRecord | None = None  # of a run


@dataclass
class Group:
    """Runs that differ in the seed only."""

    name: str
    runs: list[ScoredEncoder]

    @property
    def factors(self) -> dict[str, str]:
        return self.runs[0].factors

    @property
    def start(self) -> str:
        """The encoder before training, with its pooler; groups that start alike may be compared."""
        revision = self.factors.get("model_revision")
        return f"{self.factors['encoder']}{f' at {revision}' if revision else ''} ({self.factors['pooler']})"

    def values(self, key: str) -> list[float]:
        return [run.scores[key] for run in self.runs if key in run.scores]

    def summary(self, key: str) -> Summary | None:
        return Summary.of(self.values(key))

    def before(self, key: str) -> float | None:
        found = [run.before[key] for run in self.runs if key in run.before]
        return float(np.mean(found)) if found else None

    def published(self, key: str) -> float | None:
        """The score of the encoder as published, where the group trains another pooling."""
        found = [run.published[key] for run in self.runs if key in run.published]
        return float(np.mean(found)) if found else None

    def verdicts(self, key: str) -> str:
        """What training did by the intervals over pairs, against the encoder as published; empty without intervals."""
        return counted([run.record for run in self.runs if run.record is not None], key)

    def curve(self, key: str) -> dict[int, float]:
        """The mean over the runs at the steps that all of them have."""
        curves = [run.curves[key] for run in self.runs if run.curves.get(key)]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        return {step: float(np.mean([curve[step] for curve in curves])) for step in steps}


@dataclass(frozen=True)
class Series:
    """Groups that differ in one setting, as (value, group), in ascending order if the values are numbers."""

    setting: str
    points: list[tuple[float | str, Group]]

    @property
    def numeric(self) -> bool:
        return not any(isinstance(value, str) for value, _ in self.points)


@dataclass
class Study:
    """Everything that was read from the folders."""

    groups: list[Group]
    others: dict[str, ScoredEncoder]  # encoders with results.json but no run.json, such as baselines
    skipped: dict[str, str] = field(default_factory=dict)  # folder -> why it is not used

    @property
    def runs(self) -> list[ScoredEncoder]:
        return [run for group in self.groups for run in group.runs]

    def keys(self) -> dict[str, str]:
        """Headline score -> title of each set that any encoder was scored on, in the order of papers."""
        titles = {key: title for of in SICK_SPLITS.values() for key, title in of.test_sets().items()}
        titles |= {of.set: f"SICK-R ({of.owner})" for of in SICK_SPLITS.values()}
        titles |= {of.average: f"Avg ({of.owner})" for of in SICK_SPLITS.values()}
        titles["STSBenchmark/dev"] = "STS-B dev"
        known = {headline(key): title for key, title in titles.items()}
        held = dict.fromkeys(key for run in [*self.runs, *self.others.values()] for key in headlines(run.scores))
        order = [*(key for key in known if key in held), *(key for key in held if key not in known)]
        return {key: known.get(key, set_of(key) + ScoreKey.parse(key).aside) for key in order}

    def starts(self) -> dict[str, list[Group]]:
        """Groups by the encoder that they start from; groups with more seeds come first."""
        found: dict[str, list[Group]] = {}
        for group in sorted(self.groups, key=lambda group: -len(group.runs)):
            found.setdefault(group.start, []).append(group)
        return found

    def varied(self) -> list[str]:
        """The settings that have different values in two groups."""
        names = dict.fromkeys(name for group in self.groups for name in group.factors)
        return [n for n in names if len({g.factors[n] for g in self.groups if n in g.factors}) > 1]

    def ablations(self) -> list[Series]:
        """Every largest set of groups that differ in one setting only; a loss includes the settings it alone has."""
        found = []
        for setting in self.varied():
            beside: dict[tuple, list[tuple[float | str, Group]]] = {}
            for group in self.groups:
                own = {setting, *(group.runs[0].loss_settings if setting == "loss" else ())}
                if setting in group.factors:
                    rest = tuple(sorted((key, value) for key, value in group.factors.items() if key not in own))
                    beside.setdefault(rest, []).append((_number(group.factors[setting]), group))
            for points in beside.values():
                if len({value for value, _ in points}) > 1:
                    mixed = any(isinstance(value, str) for value, _ in points)
                    found.append(Series(setting, points if mixed else sorted(points, key=lambda point: point[0])))
        return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
