"""What training did to the dev scores, in words that claim no more than the interval of a difference allows."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from ..runs.escaping import escape_markdown
from ..runs.record import RunRecord
from ..runs.scores import is_headline
from ..runs.tables import Table
from .difference import Difference

Differences: TypeAlias = dict[str, dict[str, Any]]  # as in run.json
UNTESTED = "no interval was kept, so no difference is claimed"  # of records by older versions


def kept(differences: Differences, key: str) -> Difference | None:
    """The difference of a score that run.json keeps; None where it keeps none."""
    return Difference(**differences[key]) if key in differences else None


def told(key: str, found: Difference, encoder: str) -> str:
    """``contrastive training RAISED KEY from 79.10 to 80.20 (…) against ENCODER``, or ``KEY: no difference was found
    on 265 pairs (…) against ENCODER``."""
    verb, _, rest = found.sentence().partition(" ")
    if found.verdict in ("raised", "lowered"):
        return f"contrastive training {verb.upper()} {key} {rest} against {encoder}"
    return f"{key}: {found.sentence()} against {encoder}"


def sentence_case(text: str) -> str:
    """With a capital at its beginning, unless that is the key of a score."""
    return f"C{text[1:]}" if text.startswith("contrastive training") else text


def judged_keys(record: RunRecord) -> list[str]:
    """The headline scores that were measured before and after training."""
    return [key for key in record.final if is_headline(key) and key in record.baseline]


def verdict(record: RunRecord) -> str:
    """Sentences on what training did to each dev score, against the encoder as published and, where it was trained
    with another pooling, against that one too; a loss is said as plainly as a gain."""
    said = []
    for key in judged_keys(record):
        said.append(f"**{_sentence(record, key, record.differences, record.baseline, record.baseline_name)}**")
        if record.differences.get(key, {}).get("verdict") == "lowered":
            said.append(f"This encoder is worse on it than {record.baseline_encoder}.")
        if key in record.start:
            said.append(_sentence(record, key, record.start_differences, record.start, record.start_name))
    return " ".join(said) or "**Not judged: this run had no labelled data.**"


def _sentence(record: RunRecord, key: str, differences: Differences, before: dict[str, float], name: str) -> str:
    shown, encoder = escape_markdown(key), f"the encoder {name}"
    if found := kept(differences, key):
        return sentence_case(f"{told(shown, found, encoder)}; one seed.")
    base, now = before[key], record.final[key]
    change = f"from {base:.2f} to {now:.2f} ({now - base:+.2f})"
    return f"Contrastive training took {shown} {change} against {encoder}; one seed, and {UNTESTED}."


def difference_cell(record: RunRecord, key: str, score: float) -> str:
    """``+1.10 (+0.40 to +1.80)``; empty where no interval was kept, or ``score`` has been measured otherwise since."""
    found = kept(record.differences, key)
    if found is None or round(found.after, 2) != round(score, 2):
        return ""
    return f"{found.change:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def score_table(record: RunRecord) -> Table:
    """The dev scores before and after training with what lies between, for the terminal."""
    header = ["Score x 100", record.baseline_name]
    header += [record.start_name] if record.start else []
    header += ["trained", "difference", "95 % interval", "N"]
    rows = []
    for key in judged_keys(record):
        base, now, found = record.baseline[key], record.final[key], kept(record.differences, key)
        cells = [key, f"{base:.2f}"]
        if record.start:
            cells.append(f"{record.start[key]:.2f}" if key in record.start else "-")
        cells += [f"{now:.2f}", f"{now - base:+.2f}"]
        cells += [f"{found.low:+.2f} to {found.high:+.2f}", f"{found.units:,} {found.unit}"] if found else ["-", "-"]
        rows.append(cells)
    return Table(header, rows)


def conclusions(record: RunRecord) -> Iterator[str]:
    """A line on each dev score that was measured before and after training; an alarm tells of those that fell."""
    for key in judged_keys(record):
        found = kept(record.differences, key)
        if found is not None and found.verdict != "lowered":
            yield sentence_case(told(key, found, record.baseline_encoder))


def aside(record: RunRecord, key: str) -> str:
    """`` (as published 83.25: no difference was found)``, behind the score of a run; empty without a score before."""
    if key not in record.baseline:
        return ""
    verdict = f": {of['verdict']}" if (of := record.differences.get(key)) else ""
    return f" ({record.baseline_name} {record.baseline[key]:.2f}{verdict})"


def counted(records: Sequence[RunRecord], key: str) -> str:
    """``raised in 3 of 4 runs, no difference was found in 1``: the verdicts over the pairs of runs that differ in the
    seed; empty where no run kept an interval."""
    found = Counter(of["verdict"] for record in records if (of := record.differences.get(key)))
    parts = [f"{verdict} in {n}" for verdict, n in found.most_common()]
    if not parts:
        return ""
    runs = f"run{'s' * (len(records) > 1)}"
    return ", ".join([f"{parts[0]} of {len(records)} {runs}", *parts[1:]])


def arm_against_start(name: str, records: Sequence[RunRecord]) -> Iterator[str]:
    """A sentence on each dev score of runs that differ in the seed: what it was before training, as published and with
    the pooling of the runs, and what became of it."""
    first = records[0]
    for key in judged_keys(first):
        if not all(key in record.baseline and key in record.final for record in records):
            continue
        before = [f"{_mean(records, 'baseline', key)} {first.baseline_name}"]
        if all(key in record.start for record in records):
            before.append(f"{_mean(records, 'start', key)} {first.start_name}")
        after = f"{_mean(records, 'final', key)} trained"
        yield f"{name}, {key}: {', '.join(before)}, {after} ({counted(records, key) or UNTESTED})"


def _mean(records: Sequence[RunRecord], part: str, key: str) -> str:
    return f"{statistics.fmean(getattr(record, part)[key] for record in records):.2f}"
