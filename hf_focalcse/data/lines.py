"""The lines of a text file, or one column of a table -> byte ranges of one memory-mapped file."""

from __future__ import annotations

import json
import mmap
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import UserError
from .files import BLOCK, FORMATS, TEXTS, Hints, Input, MappedFile, NoText, temporary_file
from .formats import Rows, arrow_rows, named, read_rows, require_columns

if TYPE_CHECKING:
    import pyarrow

HINTS = Hints(
    undecodable=", or put U+FFFD there with --encoding_errors replace",
    ragged="; plain sentences go into a .txt file",
)


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

    def __init__(self, name: str, encoding_errors: str, column: str | None):
        self.input, self.column = Input(name, encoding_errors, HINTS), column

    def read_file(self, path: Path) -> tuple[MappedFile, Iterator[Lines]]:
        """A file, whose format its name tells. Lines of a table are its cells."""
        kind, file = self.input.open(path, FORMATS)
        if kind not in TEXTS:
            return self._cells(read_rows(self.input, kind, file, self._choose))
        if self.column is not None:
            raise UserError(
                f"{self.input.name} is plain text and has no column {self.column!r}; leave --text_column out"
            )
        return file, self._text(file.data)

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
                raise UserError(
                    f"{where} has {len(columns)} columns; name one with --text_column for sentences, or two or "
                    f"three with --columns for pairs and their hard negatives; {named(columns)}"
                )
            self.column = columns[0]
        require_columns([self.column], columns, where)
        return [self.column]

    def _cells(self, rows: Rows) -> tuple[MappedFile, Iterator[Lines]]:
        """The cells of the column, empty where a row has none, written to a file one after the other."""
        lengths = array("q")
        with temporary_file() as file:
            for number, row in rows:
                text = row.get(self.column or "")
                if not isinstance(text, str | None):
                    raise UserError(
                        f"{self.input.at(number)}: {self.column!r} must be a string or null, not "
                        f"{json.dumps(text, default=str)[:80]}; name a column of text with --text_column"
                    )
                cell = (text or "").encode()
                file.write(cell)
                lengths.append(len(cell))
            if not any(lengths):
                said = f"{self.input.name} holds no sentence: {len(lengths)} rows, none with text"
                raise NoText(said, len(lengths))
        mapped = MappedFile(file.name, temporary=True)
        return mapped, _in_blocks(mapped.data, np.frombuffer(lengths, np.int64))


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
