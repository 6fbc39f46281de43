"""The records of a run -> those of an export that publishes fewer dimensions than were trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..runs.record import RunRecord
from ..runs.scores import Results, ScoreKey, set_of


def cut_scores(record: RunRecord, results: Results | None, size: int | None) -> tuple[RunRecord, Results | None]:
    """The record and the scores of vectors of ``size`` dimensions (None: whole ones); what was not measured at that
    size is left out, and named in a note. Results that were measured so leave both as they are."""
    measured = None if results is None else results.metadata["model"].get("truncate_dim")
    if measured == size:
        return record, results
    cut = "not cut" if size is None else f"cut to their first {size} dimensions"
    note = f"the vectors are {cut}, which training did not score them with; the scores are of the vectors published"
    if results is not None:
        scores = at_size(results.scores, size)
        sets = {set_of(key) for key in scores}
        data = {key: without_cosines(of) for key, of in results.metadata["data"].items() if key in sets}
        if lost := sorted(results.metadata["data"].keys() - data.keys()):
            note += f", for which {', '.join(lost)} must be scored again: focalcse eval on the export does it"
        details = results.metadata | {"data": data, "model": results.metadata["model"] | {"truncate_dim": size}}
        details.pop("comparisons", None)  # of other vectors
        results = Results(scores, details) if data else None
    return replace(
        record,
        final=at_size(record.final, size),
        baseline=at_size(record.baseline, size),
        start=at_size(record.start, size),
        differences={},  # whose intervals are of other vectors
        start_differences={},
        notes=[*record.notes, note],
    ), results


def at_size(scores: dict[str, float], size: int | None) -> dict[str, float]:
    """The scores of vectors of ``size`` dimensions as those of the vectors published, with those of smaller sizes."""
    if size is None:
        return {}
    keys = {text: ScoreKey.parse(text) for text in scores}
    own = {str(key.at(None)): scores[text] for text, key in keys.items() if key.size == size}
    smaller = {text for text, key in keys.items() if key.size is not None and key.size < size}
    return own | {text: scores[text] for text in smaller if str(keys[text].at(None)) in own}


def without_cosines(of: dict[str, Any]) -> dict[str, Any]:
    """What is said of a set, without how other vectors lie."""
    return {key: value for key, value in of.items() if key != "cosines"}
