"""What training did to the dev scores, in words that claim no more than the interval of a difference allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from ..runs.escaping import escape_markdown
from ..runs.record import RunRecord
from ..runs.scores import is_headline
from ..runs.tables import Table
from .difference import Difference

Differences: TypeAlias = dict[str, dict[str, Any]]  # as in run.json
UNTESTED = "no interval was kept, so no difference is claimed"  # of records by older versions


def told(key: str, found: Difference, encoder: str) -> str:
    """``contrastive training RAISED KEY from 79.10 to 80.20 (…) against ENCODER``, or ``KEY: no difference was found
    on 265 pairs (…) against ENCODER``."""
    verb, _, rest = found.sentence().partition(" ")
    if found.verdict in ("raised", "lowered"):
        return f"contrastive training {verb.upper()} {key} {rest} against {encoder}"
    return f"{key}: {found.sentence()} against {encoder}"


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
    if key in differences:
        text = f"{told(shown, Difference(**differences[key]), encoder)}; one seed."
        return text.replace("contrastive", "Contrastive", 1) if text.startswith("contrastive") else text
    base, now = before[key], record.final[key]
    change = f"from {base:.2f} to {now:.2f} ({now - base:+.2f})"
    return f"Contrastive training took {shown} {change} against {encoder}; one seed, and {UNTESTED}."


def difference_cell(record: RunRecord, key: str, score: float) -> str:
    """``+1.10 (+0.40 to +1.80)``; empty where no interval was kept, or ``score`` has been measured otherwise since."""
    if key not in record.differences or round(record.differences[key]["after"], 2) != round(score, 2):
        return ""
    found = Difference(**record.differences[key])
    return f"{found.change:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def score_table(record: RunRecord) -> Table:
    """The dev scores before and after training with what lies between, for the terminal."""
    header = ["Score x 100", record.baseline_name]
    header += [record.start_name] if record.start else []
    header += ["trained", "difference", "95 % interval", "N"]
    rows = []
    for key in judged_keys(record):
        base, now, of = record.baseline[key], record.final[key], record.differences.get(key)
        found = Difference(**of) if of else None
        cells = [key, f"{base:.2f}"]
        if record.start:
            cells.append(f"{record.start[key]:.2f}" if key in record.start else "-")
        cells += [f"{now:.2f}", f"{now - base:+.2f}"]
        cells += [f"{found.low:+.2f} to {found.high:+.2f}", f"{found.units:,} {found.unit}"] if found else ["-", "-"]
        rows.append(cells)
    return Table(header, rows)


def conclusions(record: RunRecord) -> Iterator[str]:
    """A line on each dev score that was measured before and after training."""
    for key in judged_keys(record):
        if key in record.differences:
            yield told(key, Difference(**record.differences[key]), record.baseline_encoder)
