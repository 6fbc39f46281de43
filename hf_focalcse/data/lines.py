"""The lines of a text file, or one column of a table -> byte ranges of one memory-mapped file."""

from __future__ import annotations

import json
import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UserError
from .files import BLOCK, Input, MappedFile, NoText, temporary_file
from .formats import arrow_rows, named, read_rows, require_columns
from .guesses import LOOKED_AT, columns_of_plain, is_sentence, other_format, shown_delimiter
from .places import ending
from .reading import FORMATS, SENTENCE_HINTS, TEXTS, Hints, Reading
from .rows import Rows, inside, texts_inside

if TYPE_CHECKING:
    import pyarrow

TOP = ", as the first line calls it (put a line of names above the others where there is none)"


class Lines(NamedTuple):
    """Some consecutive lines: ``data[starts[i]:ends[i]]``, at ``offset`` in the mapped file."""

    offset: int
    data: bytes
    starts: np.ndarray  # int64
    ends: np.ndarray  # int64
    broken: list[int]  # those that hold bytes which are not UTF-8


class Source:
    """One file or table of training text, read by `read_file` or `read_arrow`.

    Args:
        column: of a table; None is its only column, whose name is then kept here.
    """

    def __init__(self, name: str, reading: Reading, column: str | None, hints: Hints = SENTENCE_HINTS):
        self.input, self.column = Input(name, reading, hints), column
        self.path: list[str] = []  # names of objects within a cell, where the column is a dotted path

    def read_file(self, path: Path) -> tuple[MappedFile, Iterator[Lines]]:
        """A file, whose format its name tells. Lines of a table are its cells."""
        kind, file = self.input.open(path, FORMATS)
        if kind not in TEXTS or not self.input.reading.plain:
            return self._cells(read_rows(self.input, kind, file, self._choose))
        if self.column is not None:
            raise UserError(
                f"{self.input.name} is plain text and has no column {self.column!r}; leave --text_column out"
            )
        if self.input.reading.delimiter is None:
            self._look_at(file)
        return file, self._text(file.data)

    def _look_at(self, file: MappedFile) -> None:
        """Check that the first lines are sentences.

        Raises:
            UserError: they seem to have several columns, or to be of another format.
        """
        try:
            lines = [line.strip() for line in self.input.head(file, LOOKED_AT)]
        except UserError:  # bytes that are not UTF-8, which are told where they count
            return
        if not lines:
            return
        name, begin, hints = self.input.name, f"({lines[0][:60]!r})", self.input.hints
        if what := other_format(lines):
            raise UserError(f"the lines of {name} are {what}{hints.keep}")
        sign = columns_of_plain(lines)
        if sign == "|||":
            raise UserError(
                f"most lines of {name} hold several texts with ||| between them {begin}; put each of them on a line "
                f"of its own{hints.keep}"
            )
        if sign is not None:
            sign = shown_delimiter(sign)
            raise UserError(
                f"the lines of {name} seem to have columns, separated by a {sign} {begin}; keep the sentences "
                f"alone{hints.delimiter.format(sign)}{TOP * bool(hints.delimiter)}{hints.keep}"
            )

    def read_arrow(
        self, columns: list[str], batches: Callable[[Sequence[str]], Iterable[pyarrow.RecordBatch]]
    ) -> tuple[MappedFile, Iterator[Lines]]:
        """``columns`` of a table, and ``batches``: some of them -> record batches that hold these."""
        self.input.unit = "row"
        return self._cells(arrow_rows(self.input, columns, batches, self._choose))

    def _text(self, data: mmap.mmap) -> Iterator[Lines]:
        """Blocks of whole lines, checked together, and line by line only where the check fails."""
        at, line = self.input.begin(data), 1
        while at < len(data):
            stop = data.find(b"\n", min(at + BLOCK, len(data)) - 1) + 1 or len(data)
            block = data[at:stop]
            codes = np.frombuffer(block, np.uint8)
            ends = np.flatnonzero(codes == ord("\n"))
            if not block.endswith(b"\n"):  # the last line of the file
                ends = np.append(ends, len(block))
            starts = np.append(0, ends[:-1] + 1)
            ends = ends - ((ends > starts) & (codes[ends - 1] == ord("\r")))
            try:
                block.decode()
                broken = []
            except UnicodeDecodeError:
                raw = [block[a:b] for a, b in zip(starts, ends, strict=True)]
                broken = [i for i, text in enumerate(raw) if self._is_broken(text, line + i)]
            yield Lines(at, block, starts, ends, broken)
            at, line = stop, line + len(starts)

    def _is_broken(self, raw: bytes, number: int) -> bool:
        before = self.input.undecodable
        self.input.decode(raw, number)
        return self.input.undecodable > before

    def _choose(self, columns: list[str], where: str) -> Sequence[str]:
        if self.column is None:
            if len(columns) != 1:
                raise UserError(f"{where} has {len(columns)} columns; {self.input.hints.column}; {named(columns)}")
            text = ending(self.input.name) in TEXTS
            plain = "leave --delimiter out" if text else "call a file of plain sentences .txt"
            if is_sentence(columns[0]) and self.input.unit in ("line", "row"):
                raise UserError(
                    f"{where} begins with {columns[0][:60]!r} where the name of the column should be; put a first "
                    f"line such as text above it, or {plain}{self.input.hints.named}"
                )
            self.column = columns[0]
        head, *path = self.column.split(".")
        if path and self.column not in columns and head in columns:  # a place within nested objects
            self.path = path
            return [head]
        self.path = []
        require_columns([self.column], columns, where)
        return [self.column]

    def _cells(self, rows: Rows) -> tuple[MappedFile, Iterator[Lines]]:
        """The cells of the column, empty where a row has none, written to a file one after the other."""
        lengths = array("q")
        with temporary_file() as file:
            for number, row in rows:
                text = self._cell(row, number)
                cell = (text or "").encode()
                file.write(cell)
                lengths.append(len(cell))
            if not any(lengths):
                said = f"{self.input.name} holds no sentence: {len(lengths)} rows, none with text"
                raise NoText(said, len(lengths))
        mapped = MappedFile(file.name, temporary=True)
        return mapped, _in_blocks(mapped.data, np.frombuffer(lengths, np.int64))

    def _cell(self, row: dict[str, Any], number: int) -> str | None:
        """The text in a row.

        Raises:
            UserError: something else is there.
        """
        column = self.column or ""
        text = row.get(column.split(".")[0] if self.path else column)
        try:
            text = inside(text, self.path)
        except KeyError as error:
            raise UserError(
                f"{self.input.at(number)}: there is no {error.args[0]!r} on the way to {column!r}; give the path of "
                "the texts as --text_column"
            ) from error
        if not isinstance(text, str | None):
            texts = list(texts_inside(text, column))
            nested = self.input.hints.nested
            remedy = f"name a text in it{nested.format(texts[0])}" if texts and nested else self.input.hints.column
            remedy = "give each text a row of its own" if isinstance(text, list) else remedy
            raise UserError(
                f"{self.input.at(number)}: {column!r} must be a string or null, not "
                f"{json.dumps(text, default=str)[:80]}; {remedy}"
            )
        return text


def _in_blocks(data: mmap.mmap, lengths: np.ndarray) -> Iterator[Lines]:
    """Cells that lie one after the other, about `BLOCK` bytes at a time."""
    ends = np.cumsum(lengths)
    starts, first = ends - lengths, 0
    while first < len(ends):
        offset = int(starts[first])
        last = max(first + 1, int(np.searchsorted(ends, offset + BLOCK)))
        yield Lines(offset, data[offset : ends[last - 1]], starts[first:last] - offset, ends[first:last] - offset, [])
        first = last


def scan(file: MappedFile, blocks: Iterable[Lines], errors: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """starts, ends, hashes, all (N,) int64, of every line after stripping; a blank line ends where it starts."""
    parts = []
    for offset, data, starts, ends, broken in blocks:
        codes = np.frombuffer(data, np.uint8)
        some = ends > starts
        edges = np.zeros((2, len(starts)), np.uint8)
        edges[:, some] = codes[starts[some]], codes[ends[some] - 1]
        # Only a line whose first or last byte is not printable ASCII can be blank or have white space to strip.
        for i in map(int, np.flatnonzero(some & ((edges <= 0x20) | (edges >= 0x80)).any(0))):
            text = data[starts[i] : ends[i]].decode("utf-8", errors)
            rest = text.lstrip()
            starts[i] += len(text[: len(text) - len(rest)].encode())
            ends[i] -= len(rest[len(rest.rstrip()) :].encode())
        lines = [data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        for i in broken:
            lines[i] = lines[i].decode("utf-8", errors).encode()
        parts.append((starts + offset, ends + offset, np.fromiter(map(hash, lines), np.int64, len(lines))))
        file.release()
    if not parts:  # nothing but a byte order mark
        return tuple(np.empty(0, np.int64) for _ in range(3))  # type: ignore[return-value]
    starts, ends, hashes = (np.concatenate(part) for part in zip(*parts, strict=True))
    return starts, ends, hashes
