"""Three-way merge of model cards: newly generated text is taken, and what was written by hand is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

import yaml
from huggingface_hub.utils import yaml_dump

from ..errors import UserError

FRONT = re.compile(r"\A---[ \t]*\n(.*?\n)??---[ \t]*(?:\n|\Z)", re.DOTALL)


def merge_cards(base: str | None, theirs: str, ours: str) -> tuple[str, list[str]]:
    """(card, lines of ours that gave way to lines written by hand).

    base: the card as it was generated before, None where it is not known. theirs: that card as it is now. ours: the
    card as it is generated now. Without a base all of theirs counts as written by hand and is kept under ours.

    Raises:
        ValueError: the metadata of one of them are not a YAML mapping.
    """
    if theirs == base or not theirs.strip():
        return ours, []
    (front, text), (their_front, their_text) = split_card(ours), split_card(theirs)
    if ours in (base, theirs):
        return theirs, []
    if base is None:
        metadata = merge_metadata({}, their_front, front)
        their_text = their_text.strip()
        text = (
            text if not their_text or their_text in text else f"{text.rstrip()}\n\n## Earlier card\n\n{their_text}\n"
        )
        return join_card(metadata, text), []
    base_front, base_text = split_card(base)
    metadata = merge_metadata(base_front, their_front, front)
    merged, given_way = merge_lines(*(part.splitlines() for part in (base_text, their_text, text)))
    return join_card(metadata, "\n".join(merged) + "\n"), given_way


def merge_or_refuse(base: str | None, theirs: str, ours: str, where: str) -> tuple[str, list[str]]:
    """`merge_cards`; where: the place of ``theirs``, for the message.

    Raises:
        UserError: its metadata are not YAML; nothing has been written.
    """
    try:
        return merge_cards(base, theirs, ours)
    except ValueError as error:
        raise UserError(
            f"the metadata of {where} are not YAML ({error}); correct them, and nothing that you wrote is lost"
        ) from error


def split_card(card: str) -> tuple[dict[str, Any], str]:
    """(metadata, text)."""
    card = card.replace("\r\n", "\n")
    found = FRONT.match(card)
    if not found:
        return {}, card
    try:
        metadata = yaml.safe_load(found[1] or "") or {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(metadata, dict):
        raise ValueError("the metadata are not a mapping")
    return metadata, card[found.end() :]


def join_card(metadata: dict[str, Any], text: str) -> str:
    return f"---\n{yaml_dump(metadata, sort_keys=False, line_break=chr(10)).strip()}\n---\n{text}"


def merge_metadata(base: dict[str, Any], theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Key by key: the side that changed it wins, lists are united, and newly measured results replace others."""
    merged: dict[str, Any] = {}
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        before, there, here = (of.get(key) for of in (base, theirs, ours))
        if key == "model-index" and there and here:
            merged[key] = _merge_index(there, here)
        elif key not in ours and there == before:
            continue  # no longer generated
        elif key not in ours or here == before:
            if key in theirs:  # else taken out by hand
                merged[key] = there
        elif key not in theirs or there == before:
            merged[key] = here
        elif isinstance(there, list) and isinstance(here, list):
            gone = [item for item in before or [] if item not in there]
            merged[key] = there + [item for item in here if item not in there and item not in gone]
        else:
            merged[key] = there
    return merged


def _merge_index(theirs: list[Any], ours: list[Any]) -> list[Any]:
    """Our results, and those of theirs that are on other sets or of other metrics."""

    def identity(result: dict[str, Any], metric: dict[str, Any]) -> tuple[Any, ...]:
        dataset = result.get("dataset", {})
        return dataset.get("type"), dataset.get("split"), dataset.get("config"), metric.get("type")

    (own, *_), others = ours, [result for model in theirs for result in model.get("results", [])]
    known = {identity(result, metric) for result in own["results"] for metric in result["metrics"]}
    kept = []
    for result in others:
        metrics = [metric for metric in result.get("metrics", []) if identity(result, metric) not in known]
        kept += [{**result, "metrics": metrics}] if metrics else []
    return [{**own, "results": own["results"] + kept}]


def merge_lines(base: list[str], theirs: list[str], ours: list[str]) -> tuple[list[str], list[str]]:
    """(lines with the changes of both sides, lines of ours that were left out since theirs changed the same place)."""
    merged: list[str] = []
    given_way: list[str] = []
    for before, there, here in _regions(base, theirs, ours):
        if there in (before, here):
            merged += here
        else:
            merged += there
            given_way += [line for line in here if line not in there] if here != before else []
    return merged, given_way


def _regions(base: list[str], theirs: list[str], ours: list[str]) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """The three texts cut into pieces at the lines that all of them share."""
    there, here = _matches(base, theirs), _matches(base, ours)
    shared = [(i, there[i], here[i]) for i in range(len(base)) if i in there and i in here]
    last = (0, 0, 0)
    for point in [*shared, (len(base), len(theirs), len(ours))]:
        piece = base[last[0] : point[0]], theirs[last[1] : point[1]], ours[last[2] : point[2]]
        if any(piece):
            yield piece
        if point[0] < len(base):
            line = base[point[0]]
            yield [line], [line], [line]
        last = (point[0] + 1, point[1] + 1, point[2] + 1)


def _matches(base: list[str], other: list[str]) -> dict[int, int]:
    """Line of base -> the same line in other."""
    blocks = SequenceMatcher(None, base, other, autojunk=False).get_matching_blocks()
    return {a + i: b + i for a, b, size in blocks for i in range(size)}
