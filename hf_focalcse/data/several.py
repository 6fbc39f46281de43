"""Several files of training text -> the lines of all, as byte ranges of one run of addresses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from .askubuntu import COLUMNS, texts_of, training_texts
from .askubuntu import TEXTS as TITLES
from .files import MappedFile, NoText, temporary_file
from .lines import Source, scan
from .places import ending, find_files
from .reading import SENTENCE_HINTS, TEXTS, Hints, Reading

LARGE = 1 << 24  # bytes from which a text file is mapped where it lies; the lines of smaller ones are copied together
NAMED = 3  # names that a message about several shows


class MappedFiles:
    """Mapped files, one after the other, read by addresses that count on from file to file."""

    def __init__(self, files: Sequence[MappedFile]):
        self.files = list(files)
        self.starts = np.cumsum([0, *map(len, files)])[:-1].tolist()

    def read(self, start: int, end: int) -> bytes:
        """The bytes between two addresses of one file."""
        place = bisect_right(self.starts, start) - 1
        return self.files[place].read(start - self.starts[place], end - self.starts[place])

    def release(self) -> None:
        for file in self.files:
            file.release()


class Piece(NamedTuple):
    """The lines of a file: where they are in the ``mapped`` file of that number, or in the last one for None."""

    mapped: int | None
    starts: np.ndarray
    ends: np.ndarray
    hashes: np.ndarray


class Part(NamedTuple):
    """One of several files: its name, the lines that it has, and those in which bytes are not UTF-8."""

    name: str
    lines: int
    undecodable: int


@dataclass
class Text:
    """The lines of all files, before any is left out: ``file.read(starts[i], ends[i])``, all (N,) int64."""

    name: str
    file: MappedFile | MappedFiles
    starts: np.ndarray
    ends: np.ndarray  # equal to the start where the line is blank
    hashes: np.ndarray
    column: str | None
    undecodable: int
    parts: list[Part] = field(default_factory=list)  # where there are several files
    left_out: int = 0  # files of other formats in a folder
    notes: list[str] = field(default_factory=list)  # how they were read, where that is not plain

    def counts(self, chosen: np.ndarray) -> list[int]:
        """How many of the ``chosen`` lines (their numbers, from 0) each part has."""
        ends = np.cumsum([part.lines for part in self.parts])
        return np.bincount(np.searchsorted(ends, chosen, "right"), minlength=len(ends)).tolist()


def read_source(source: Source, file: MappedFile, blocks: Any) -> Text:
    """The text of one file or table, as ``Source`` has opened it."""
    starts, ends, hashes = scan(file, blocks, source.input.errors)
    found = Text(source.input.name, file, starts, ends, hashes, source.column, source.input.undecodable)
    found.notes = source.input.notes
    return found


def read_files(
    names: Sequence[str | Path], reading: Reading, column: str | None, hints: Hints = SENTENCE_HINTS
) -> Text:
    """The text of the files that ``names`` stand for, see `find_files`.

    A single file is mapped where it lies. Of several, large text files are too, since copying them would take long,
    and the lines of all others are copied into one temporary file, since a process may not have many files mapped.

    Args:
        column: of tables; plain text beside them has none.

    Raises:
        UserError: a name stands for no file, a file cannot be read or has no known ending, the tables hold their text
            in columns of different names, or there is no text.
    """
    if len(names) == 1 and texts_of(names[0]) is not None:
        return read_askubuntu(Path(names[0]), reading, column)
    files, left_out = find_files(names)
    reading.require_used({ending(file) for file in files}, ", ".join(map(str, names[:NAMED])))
    name = ", ".join(map(str, names[:NAMED])) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    if len(files) == 1:
        source = Source(files[0], reading, column, hints)
        return replace(read_source(source, *source.read_file(Path(files[0]))), left_out=left_out)
    if all(ending(file) in TEXTS for file in files) and column is not None and reading.plain:
        raise UserError(f"{name} is plain text and has no column {column!r}; leave --text_column out")
    mapped: list[MappedFile] = []
    pieces: list[Piece] = []
    parts: list[Part] = []
    asked, first = column, ""  # first: the first table
    notes: list[str] = []
    with temporary_file() as pool:
        for file in files:
            plain = ending(file) in TEXTS and reading.plain
            source = Source(file, reading, None if plain else asked, hints)
            try:
                text = read_source(source, *source.read_file(Path(file)))
            except NoText as nothing:
                parts.append(Part(file, nothing.lines, 0))
                pieces.append(Piece(None, *np.zeros((3, nothing.lines), np.int64)))
                continue
            notes += text.notes
            if not plain:
                if first and text.column != column:
                    raise UserError(
                        f"{first} and {file} hold their text in columns of different names, {column!r} and "
                        f"{text.column!r}; give the columns one name, or read the files one by one"
                    )
                column, first = text.column, first or file
            parts.append(Part(file, len(text.starts), text.undecodable))
            if isinstance(text.file, MappedFile) and plain and len(text.file) >= LARGE:
                pieces.append(Piece(len(mapped), text.starts, text.ends, text.hashes))
                mapped.append(text.file)
            else:
                pieces.append(Piece(None, *_copy(text, pool), text.hashes))
        copied = pool.tell()
    pooled = MappedFile(pool.name, temporary=True) if copied else None
    if pooled is None:
        Path(pool.name).unlink()
    if not (mapped or pooled):
        raise UserError(f"{name} holds no sentence: {len(parts)} files, none with text")
    joined = MappedFiles([*mapped, *([pooled] if pooled else [])])
    bases = [joined.starts[-1 if piece.mapped is None else piece.mapped] for piece in pieces]
    return Text(
        name=name,
        file=joined,
        starts=np.concatenate([piece.starts + base for piece, base in zip(pieces, bases, strict=True)]),
        ends=np.concatenate([piece.ends + base for piece, base in zip(pieces, bases, strict=True)]),
        hashes=np.concatenate([piece.hashes for piece in pieces]),
        column=column,
        undecodable=sum(part.undecodable for part in parts),
        parts=parts,
        left_out=left_out,
        notes=notes,
    )


def read_askubuntu(folder: Path, reading: Reading, column: str | None) -> Text:
    """The questions of AskUbuntu's folder outside its dev and test sets, see `training_texts`."""
    texts, note = training_texts(folder, column)
    if not texts:
        raise UserError(f"{folder} holds no question outside its dev and test sets; give the whole {TITLES}")
    with TemporaryDirectory() as place:
        lines = Path(place) / "titles.txt"
        lines.write_text("\n".join(texts), encoding="utf-8")
        source = Source(str(lines), reading, None)
        read = read_source(source, *source.read_file(lines))
        with temporary_file() as pool:
            starts, ends = _copy(read, pool)
    file = MappedFile(pool.name, temporary=True)
    return Text(str(folder), file, starts, ends, read.hashes, column or COLUMNS[0], read.undecodable, notes=[note])


def _copy(text: Text, pool: Any) -> tuple[np.ndarray, np.ndarray]:
    """Append the lines of ``text`` to ``pool``: their starts and ends there."""
    first, lengths = pool.tell(), text.ends - text.starts
    ends = first + np.cumsum(lengths)
    for start, end in zip(text.starts.tolist(), text.ends.tolist(), strict=True):
        if end > start:
            pool.write(text.file.read(start, end))
    return ends - lengths, ends
