"""What may and what may not be concluded from a comparison, in sentences and as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ..runs.escaping import escape_markdown
from ..runs.scores import LOWER_IS_BETTER, ScoreKey
from ..runs.tables import Table
from .statistics import PairTest, SeedTest

ALPHA = 0.05


@dataclass(frozen=True)
class Row:
    """One set, or the average: the scores x 100 of both arms by seed, and the tests of their difference."""

    key: str
    title: str
    a: list[float]
    b: list[float]
    over_seeds: SeedTest
    over_pairs: PairTest | None
    p_holm: float | None = None
    p_pairs_holm: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Arm a against arm b on the same seeds."""

    a: str
    b: str
    seeds: list[int]
    rows: list[Row]
    average: Row
    conclusion: str
    notes: list[str]
    further: list[Row] = field(default_factory=list)  # alignment, uniformity, MAP: what else may be claimed


def conclude(made: Comparison) -> str:
    """What may and what may not be concluded, in sentences."""
    test, n = made.average.over_seeds, len(made.seeds)
    over = f"on average over {len(made.rows)} sets" if len(made.rows) > 1 else f"on {made.rows[0].title}"
    word = f"{abs(test.mean):.2f} points {'above' if test.mean > 0 else 'below'}" if test.mean else "equal to"
    said = []
    if n < 2:
        said.append(
            f"One seed ({made.seeds[0]}): nothing may be concluded about {made.a} and {made.b} in general. This "
            f"{made.a} model has {test.mean:+.2f} points against this {made.b} model {over}; with another seed this "
            "may be reversed."
        )
    elif test.p is None:
        said.append(
            f"{made.a} against {made.b}: all {n} seeds differ by the same {test.mean:+.2f} {over}, so no test is "
            "possible and no difference is claimed."
        )
    elif test.p < ALPHA:
        said.append(
            f"{made.a} is {word} {made.b} {over} ({n} seeds, 95 % confidence interval {_interval(test)}, paired "
            f"t-test {_p(test.p)}): with these other settings, the difference is larger than seed noise."
        )
    else:
        said.append(
            f"No difference between {made.a} and {made.b} may be claimed {over}: {test.mean:+.2f} points over {n} "
            f"seeds, 95 % confidence interval {_interval(test)}, paired t-test {_p(test.p)}. This does not prove that "
            "they are equal: every difference inside the interval remains possible."
        )
    if n > 1 and len(made.rows) > 1:
        found: dict[str, list[str]] = {"above": [], "below": []}
        for row in made.rows:
            if _below(row.p_holm):
                found["above" if row.over_seeds.mean > 0 else "below"].append(
                    f"{row.title} ({row.over_seeds.mean:+.2f})"
                )
        parts = [f"{side} on {', '.join(sets)}" for side, sets in found.items() if sets]
        others = [row.title for row in made.rows if not _below(row.p_holm)]
        nowhere = f"no difference may be claimed on {', '.join(others) if parts else 'any of them'}"
        said.append(
            f"Set by set, corrected for {len(made.rows)} tests, "
            + (f"{made.a} is {' and '.join(parts)}" if parts else "")
            + ("; " if parts and others else "")
            + (f"{nowhere}." if others else ".")
        )
    pairs = made.average.over_pairs
    if pairs is not None:
        beyond = "larger" if pairs.p < ALPHA else "not larger"
        said.append(
            f"For the {'models' if n > 1 else 'two models'} trained here, the difference {over} is {beyond} than "
            f"what the choice of sentence pairs explains ({_interval(pairs)} on resampled pairs, "
            f"permutation {_p(pairs.p)})" + (", which says nothing about other seeds." if n < 2 else ".")
        )
    said += [conclude_further(made.a, made.b, made.further)] if made.further and n > 1 else []
    return " ".join(said)


def conclude_further(a: str, b: str, rows: list[Row]) -> str:
    """What may be concluded about alignment, uniformity and scores of rankings: better, worse or undecided, each."""
    said = []
    for row in rows:
        test, metric = row.over_seeds, ScoreKey.parse(row.key).metric
        lower = metric in LOWER_IS_BETTER
        digits = 4 if lower else 2
        if test.low is None or test.high is None:
            change = f"{_number(test.mean, digits, True)}, no test is possible"
        else:
            change = f"{test.mean:+.{digits}f}, {test.low:+.{digits}f} to {test.high:+.{digits}f}"
        verdict = "undecided"
        if _below(row.p_holm):
            verdict = "better" if (test.mean < 0) == lower else "worse"
        said.append(f"{row.title} ({'lower' if lower else 'higher'} is better) is {verdict} ({change})")
    return (
        f"Of {a} against {b}, {'; '.join(said)}; the difference with its 95 % confidence interval over seeds, "
        f"corrected for {_counted(len(rows), 'test')}."
    )


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _below(p: float | None) -> bool:
    return p is not None and p < ALPHA


def _interval(test: SeedTest | PairTest, digits: int = 2) -> str:
    return "-" if test.low is None or test.high is None else f"{test.low:+.{digits}f} to {test.high:+.{digits}f}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _number(value: float | None, digits: int = 2, sign: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:{'+' if sign else ''}.{digits}f}"


def _small(p: float | None) -> str:
    return "-" if p is None else "<.001" if p < 0.001 else f"{p:.3f}"


def _spread(scores: list[float], digits: int = 2) -> str:
    return f"{np.mean(scores):.{digits}f}" + (f" ±{np.std(scores, ddof=1):.{digits}f}" if len(scores) > 1 else "")


def report(made: Comparison, markdown: bool) -> str:
    """A table, notes on it, and the conclusion."""
    header = ["Set", made.a, made.b, "diff", "95 % seeds", "p", "Holm", "g", "95 % pairs", "p", "Holm"]
    rows = []
    for row in (*made.rows, *([made.average] if len(made.rows) > 1 else [])):
        seeds, pairs = row.over_seeds, row.over_pairs
        cells = [row.title, _spread(row.a), _spread(row.b)]
        cells += [_number(seeds.mean, sign=True), _interval(seeds), _small(seeds.p), _small(row.p_holm)]
        cells += [_number(seeds.g, sign=True), _interval(pairs) if pairs else "-"]
        rows.append([*cells, _small(pairs.p if pairs else None), _small(row.p_pairs_holm)])
    for row in made.further:
        seeds, digits = row.over_seeds, 4 if ScoreKey.parse(row.key).metric in LOWER_IS_BETTER else 2
        cells = [row.title, _spread(row.a, digits), _spread(row.b, digits), _number(seeds.mean, digits, sign=True)]
        cells += [_interval(seeds, digits), _small(seeds.p), _small(row.p_holm), _number(seeds.g, sign=True)]
        cells += [_interval(row.over_pairs) if row.over_pairs else "-"]
        rows.append([*cells, _small(row.over_pairs.p if row.over_pairs else None), _small(row.p_pairs_holm)])
    resamples = next((row.over_pairs.resamples for row in made.rows if row.over_pairs), None)
    notes = [
        f"Spearman x 100, mean ± standard deviation over seed{'s' * (len(made.seeds) > 1)} "
        f"{', '.join(map(str, made.seeds))}. "
        "Over seeds: paired t-test and its interval, Hedges' g of the paired differences. Holm: corrected for "
        f"{_counted(len(made.rows), 'set')}."
        + (
            f" Over sentence pairs: percentile interval of {resamples:,} bootstrap resamples, p of as many swaps."
            if resamples
            else ""
        ),
        *(
            ["Alignment and uniformity (lower is better), MAP and MRR: Holm's correction is over these."]
            * bool(made.further)
        ),
        *(f"Note: {note}." for note in made.notes),
        made.conclusion,
    ]
    table = Table(header, rows, notes)
    title = f"{made.a} against {made.b}"
    return f"### {escape_markdown(title)}\n\n{table.markdown()}" if markdown else f"{title}\n\n{table.plain()}"
