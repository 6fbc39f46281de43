"""The tables and figures of papers that can be repeated: a yaml each, with its rows and the published scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, suggest
from ..parsing.recipes import recipe_names
from ..parsing.shipped import load_yaml
from ..runs.scores import SEVEN

PAPERS = Path(__file__).parent.with_name("papers")
ABOUT = "paper"  # the file that says what all items of a paper share
AVERAGE = "Avg"
SCORES = (*SEVEN.values(), AVERAGE)  # what an item asks for unless it names its scores
KNOWN = (*SCORES, "STS-B dev", "alignment", "uniformity", "MAP")


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    about: what the paper says of it. source: where the published scores stand. rows: label -> flags of training; rows
    of one label are one run in all items of a paper. judged: label -> flags of evaluation, of encoders that are not
    trained. published: label -> title of a score -> value; a score that is missing is not in the public text.
    compare: label -> the label that it is tested against. vary: name of an axis -> label -> value, drawn as a curve.
    picture: what else is drawn. quickstart: what the small scale changes.
    """

    paper: str
    name: str
    title: str
    of: str
    link: str
    about: str
    source: str
    rows: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    scores: tuple[str, ...]
    evaluate: dict[str, Any]
    judged: dict[str, dict[str, Any]] = field(default_factory=dict)
    published: dict[str, dict[str, float]] = field(default_factory=dict)
    compare: dict[str, str] = field(default_factory=dict)
    vary: dict[str, dict[str, float]] = field(default_factory=dict)
    picture: str = ""
    deviations: tuple[str, ...] = ()
    quickstart: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # rows that this version cannot run, with the reason


def paper_names() -> list[str]:
    return sorted(folder.name for folder in PAPERS.iterdir() if folder.is_dir())


def item_names(paper: str) -> list[str]:
    return sorted(file.stem for file in (PAPERS / paper).glob("*.yaml") if file.stem != ABOUT)


def read_item(paper: str, name: str) -> Item:
    """An item by the names of its paper and its own.

    Raises:
        UserError: there is no such paper or item.
    """
    papers = paper_names()
    if paper not in papers:
        raise UserError(f"there is no paper {paper!r}{suggest(paper, papers)}; there are {', '.join(papers)}")
    items = item_names(paper)
    if name not in items:
        raise UserError(f"{paper} has no item {name!r}{suggest(name, items)}; there are {', '.join(items)}")
    shared = load_yaml("paper", PAPERS / paper / f"{ABOUT}.yaml")
    content = {"rows": {}, "seeds": [], "scores": SCORES} | load_yaml("item", PAPERS / paper / f"{name}.yaml")
    lacking = {
        label: row["recipe"] for label, row in content["rows"].items() if row.get("recipe") not in recipe_names()
    }
    return Item(
        paper=paper,
        name=name,
        of=shared["title"],
        link=shared["link"],
        evaluate=shared.get("evaluate", {}),
        deviations=(*shared["deviations"], *content.pop("deviations", ())),
        rows={label: row for label, row in content.pop("rows").items() if label not in lacking},
        seeds=tuple(content.pop("seeds")),
        scores=tuple(content.pop("scores")),
        missing=tuple(f"{label}: this version has no recipe {recipe}" for label, recipe in lacking.items()),
        **content,
    )
