"""AskUbuntu's folder: text_tokenized.txt(.gz), whose lines are id, title and body, and its dev.txt and test.txt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError, suggest
from .files import read_lines

TEXTS = "text_tokenized.txt"
SPLITS = ("dev", "test")
TITLE, WHOLE = "title", "title_body"  # what may be trained on
COLUMNS = (TITLE, WHOLE)


class Question(NamedTuple):
    """One line: where it stands, and its parts."""

    where: str
    id: str
    title: str
    body: str


def texts_of(folder: str | Path) -> Path | None:
    """The file of the questions; None where the folder is none of AskUbuntu's."""
    return next((file for name in (TEXTS, TEXTS + ".gz") if (file := Path(folder) / name).is_file()), None)


def read_questions(file: Path) -> Iterator[Question]:
    """Every question; raises UserError at a line without a title."""
    for number, line in enumerate(read_lines(file), start=1):
        name, tab, rest = line.partition("\t")
        if not tab:
            raise UserError(f"{file}, line {number}: no title; a line is id, title and body, separated by tabs")
        title, _, body = rest.partition("\t")
        yield Question(f"{file}, line {number}", name, title, body)


def held_out(folder: Path) -> set[str]:
    """The ids of all questions that dev.txt and test.txt name, as queries, as relevant ones and as candidates.

    Raises:
        UserError: a split is missing, so that its questions would be trained on.
    """
    found: set[str] = set()
    for split in SPLITS:
        file = folder / f"{split}.txt"
        if not file.is_file():
            raise UserError(f"{folder} has no {split}.txt, whose questions must be left out of training; put it there")
        for line in read_lines(file):
            for cell in line.split("\t")[:3]:
                found.update(cell.split())
    return found


def training_texts(folder: Path, column: str | None) -> tuple[list[str], str]:
    """(titles, or titles with bodies, of the questions outside dev and test; a note on what was left out).

    Raises:
        UserError: a file is missing or not of that form, or there is no such column.
    """
    column = column or TITLE
    if column not in COLUMNS:
        raise UserError(
            f"--text_column is {column!r}{suggest(column, COLUMNS)}; for AskUbuntu it is {' or '.join(COLUMNS)}"
        )
    file = texts_of(folder)
    assert file is not None
    without, kept, count = held_out(folder), [], 0
    for question in read_questions(file):
        count += 1
        if question.id not in without:
            kept.append(question.title if column == TITLE else f"{question.title} {question.body}".strip())
    return kept, (
        f"AskUbuntu: {column.replace('_', ' and ')} of {len(kept):,} of {count:,} questions; those of dev and test "
        "are left out"
    )
