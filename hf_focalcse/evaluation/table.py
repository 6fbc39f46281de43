"""Many results.json -> one table as papers print it: a system a row, STS12 to SICK-R and their average."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..runs.scores import LOWER_IS_BETTER, RESULTS_FILE, SICK_SPLITS, Results, ScoreKey, headline, set_of
from ..runs.tables import Table
from .identity import describe


def make_table(systems: Sequence[tuple[str, Results]], sick: str | None = None) -> Table:
    """(name, results) of each system -> table.

    sick: whose SICK-R pairs, "senteval" or "mteb"; by default SentEval's, which papers print, where any system has
    them. Each other set gets a column of its own; for a set of queries it holds MAP. Alignment and uniformity follow.

    Raises:
        UserError: there is no score to show.
    """
    scores = [results.scores for _, results in systems]
    if sick is None:
        sick = "senteval" if any(headline(SICK_SPLITS["senteval"].set) in row for row in scores) else "mteb"
    elif sick not in SICK_SPLITS:
        raise UserError(f"--sick is {sick!r}; it must be one of {', '.join(SICK_SPLITS)}")
    split = SICK_SPLITS[sick]
    columns = split.test_sets() | {split.set: f"SICK-R {split.label}", split.average: "Avg"}
    seven = {headline(key): title for key, title in columns.items()}
    if not any(key in row for row in scores for key in seven):
        seven = {}
    held = [ScoreKey.parse(key) for row in scores for key in row]
    main = [key for key in held if key.is_headline and key.set not in columns and not key.sick]
    other = {str(key): key.set for key in main if key.title == "Spearman"}
    means = {str(key): f"{key.set} {key.metric}" for key in main if key.title != "Spearman"}
    geometry = {str(key): f"{key.set} {key.metric}" for key in held if key.metric in LOWER_IS_BETTER}
    shown = seven | other | means | geometry
    if not shown:
        raise UserError("no result holds a Spearman over all pairs of a set or a MAP; evaluate again with run_eval.py")
    rows = [[name, *(_cell(row.get(key), 3 if key in geometry else 2) for key in shown)]
            for (name, _), row in zip(systems, scores, strict=True)]  # fmt: skip
    notes = ["Spearman x 100 over all pairs of a set." + (
        " Avg: the mean of the seven, each rounded to two decimals first." if seven else "")
    ] if len(shown) > len(means) + len(geometry) else []  # fmt: skip
    if any(key.is_ranking for key in main):
        notes.append("map: mean average precision x 100 of reranking, by the rules that the column names.")
    if any(key.title == "MRR" for key in main):
        notes.append("mrr: mean reciprocal rank x 100 at which a sentence finds its own among all others.")
    if geometry:
        notes.append(
            "alignment, uniformity: Wang & Isola (2020), of pairs rated above 4 and of all texts; lower is better."
        )
    theirs = next(of for of in SICK_SPLITS.values() if of != split)
    without = [
        name
        for (name, _), row in zip(systems, scores, strict=True)
        if headline(theirs.set) in row and headline(split.set) not in row
    ]
    if without:
        notes.append(f"SICK-R: {', '.join(without)} has only {theirs.label}, which does not compare.")
    return Table(["System", *shown.values()], rows, notes + _differences(systems, shown))


def _cell(score: float | None, digits: int = 2) -> str:
    return "-" if score is None else f"{score:.{digits}f}"


def _differences(systems: Sequence[tuple[str, Results]], shown: dict[str, str]) -> list[str]:
    """Notes on columns whose rows do not compare: other pairs, other texts, or missing pairs."""
    notes = []
    for key, title in shown.items():
        found: dict[str, list[str]] = {}
        for name, results in systems:
            data = results.metadata["data"].get(set_of(key))
            if data is not None:
                found.setdefault(data["sha256"], []).append(f"{name} ({data['pairs']:,} pairs, text {data['text']})")
        if len(found) > 1:
            groups = "; ".join(", ".join(group) for group in found.values())
            notes.append(f"{title}: measured on different data, not to be compared: {groups}.")
    protocols = {results.metadata["protocol"] for _, results in systems}
    if len(protocols) > 1:
        notes.append(f"Measured by different protocols: {'; '.join(sorted(protocols))}.")
    return notes


def choose_systems(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(arguments to read, those left out because they hold no scores).

    ``runs/*`` also names a sweep's journal, its report and other files, which are left out; but not where nothing
    would be left: then `read_system` says what is missing. A file of the name results.json is always read.
    """
    foreign = [text for text in arguments if _is_foreign(Path(text))]
    kept = [text for text in arguments if text not in foreign]
    return (kept, foreign) if kept else (list(arguments), [])


def _is_foreign(place: Path) -> bool:
    if place.is_dir():
        return not (place / RESULTS_FILE).exists()
    if not place.is_file() or place.name == RESULTS_FILE:
        return False
    try:
        content = json.loads(place.read_bytes())
    except ValueError:
        return True
    return not (isinstance(content, dict) and "metadata" in content)


def read_system(argument: str) -> tuple[str, Results]:
    """``FILE``, ``FOLDER`` or ``NAME=either`` -> (name, results)."""
    name, equals, path = argument.rpartition("=")
    file = Path(path)
    if equals and Path(argument).exists():  # a path with = in it
        name, file = "", Path(argument)
    results = Results.read(file / RESULTS_FILE if file.is_dir() else file)
    return name or describe(results, file), results
