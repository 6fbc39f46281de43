"""A file or table in any format -> its lines as byte ranges of one memory-mapped file.

Only ``\\n`` and ``\\r\\n`` end a line: a lone ``\\r``, U+2028, ``\\x0b`` and NUL stay inside it. A UTF-8 byte order
mark at the start is left out. Plain text is mapped where it lies; the rest is written to a temporary file first.
"""

from __future__ import annotations

import csv
import gzip
import json
import mmap
import os
import shutil
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UserError, suggest

if TYPE_CHECKING:
    import pyarrow

FORMATS = ("txt", "csv", "tsv", "jsonl", "parquet")
ALLOWED = ", ".join(f".{name}" for name in FORMATS) + ", each also with .gz"
BLOCK = 1 << 20  # bytes looked at together


class Lines(NamedTuple):
    """Some consecutive lines: ``data[starts[i]:ends[i]]``, at ``offset`` in the mapped file."""

    offset: int
    data: bytes
    starts: np.ndarray  # int64
    ends: np.ndarray  # int64
    broken: list[int]  # those that hold bytes which are not UTF-8


class MappedFile:
    """A read-only memory map: a spawned worker reopens it by path, its maker removes it if it is temporary."""

    def __init__(self, path: str | Path, temporary: bool = False):
        self.path = os.path.abspath(path)
        if temporary:
            weakref.finalize(self, _remove, self.path, os.getpid())
        self._open()

    def _open(self) -> None:
        with open(self.path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.stamp = os.fstat(file.fileno()).st_mtime_ns, len(self.data)

    def __getstate__(self) -> dict:
        return {"path": self.path, "stamp": self.stamp}

    def __setstate__(self, state: dict) -> None:
        self.path = state["path"]
        self._open()
        if self.stamp != state["stamp"]:
            raise UserError(f"{self.path} was changed while it was in use: start again and leave it alone.")

    def release(self) -> None:
        """Unmap the pages seen so far (the system keeps them cached), so that a scan stays small."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker inherits the finalizer, but not the file
        Path(path).unlink(missing_ok=True)


@contextmanager
def _spool() -> Iterator[Any]:
    """A temporary file to write and then to map; removed here only where writing fails."""
    with tempfile.NamedTemporaryFile(prefix="focalcse-", delete=False) as file:
        try:
            yield file
        except BaseException:
            os.unlink(file.name)
            raise


class Source:
    """One file or table, its name for messages, and what is found out while it is read."""

    def __init__(self, name: str, encoding_errors: str, column: str | None):
        self.name, self.errors, self.column = name, encoding_errors, column
        self.undecodable = 0  # lines in which bytes were replaced

    def read_file(self, path: Path) -> tuple[MappedFile, Iterator[Lines]]:
        name = Path(self.name).name.lower()
        kind, zipped = name.removesuffix(".gz").rpartition(".")[2], name.endswith(".gz")
        if path.is_dir():
            raise UserError(f"{self.name} is a folder: name a file ({ALLOWED}).")
        if not path.exists():
            raise UserError(f"{self.name} does not exist: check the path; --train_file is a file on this machine.")
        if kind not in FORMATS:
            raise UserError(f"{self.name} has a suffix that is not known: allowed are {ALLOWED}.")
        if kind == "txt" and self.column is not None:
            raise UserError(f"{self.name} is plain text and has no column {self.column!r}: leave --text_column out.")
        empty = UserError(f"{self.name} is empty: it must hold at least one sentence.")
        try:
            if zipped:
                with gzip.open(path) as packed, _spool() as spool:
                    shutil.copyfileobj(packed, spool, BLOCK)
                    if not spool.tell():
                        raise empty
                path = Path(spool.name)
            if not path.stat().st_size:
                raise empty
            file = MappedFile(path, temporary=zipped)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{self.name} cannot be read{' and unpacked' * zipped} ({on_one_line(error)}): check that it is "
                f"whole, that you may read it, and that {tempfile.gettempdir()} has room."
            ) from error
        if kind == "txt":
            return file, self._text(file.data)
        return self._cells(
            {"csv": self._csv, "tsv": self._tsv, "jsonl": self._jsonl, "parquet": self._parquet}[kind](file)
        )

    def read_arrow(
        self, schema: pyarrow.Schema, batches: Callable[[str], Iterable[pyarrow.RecordBatch]]
    ) -> tuple[MappedFile, Iterator[Lines]]:
        """``batches``: column name -> record batches that hold that column."""
        return self._cells(self._arrow(schema, batches))

    # Text: blocks of whole lines, checked together; line by line only where the check fails.

    def _text(self, data: mmap.mmap) -> Iterator[Lines]:
        at, line = self._skip_mark(data), 0
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
                broken = [i for i, text in enumerate(raw) if self._decode(text, line + i) is None]
            yield Lines(at, block, starts, ends, broken)
            at, line = stop, line + len(starts)

    def _skip_mark(self, data: mmap.mmap) -> int:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise UserError(f"{self.name} is UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`.")
        return 3 if data[:3] == b"\xef\xbb\xbf" else 0

    def _decode(self, raw: bytes, index: int) -> str | None:
        """The text of line ``index`` (from 0), or None (and one more on the count) where it is not UTF-8."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise UserError(
                    f"{self.name}, line {index + 1}, byte {error.start + 1} of the line (0x{raw[error.start]:02x}) is "
                    f"not UTF-8: convert the file to UTF-8, or put U+FFFD there with --encoding_errors replace."
                ) from error
            self.undecodable += 1
            return None

    # Tables: one text cell a row, b"" where there is none, written one after the other.

    def _cells(self, cells: Iterator[bytes]) -> tuple[MappedFile, Iterator[Lines]]:
        lengths = array("q")
        with _spool() as spool:
            for cell in cells:
                spool.write(cell)
                lengths.append(len(cell))
            if not any(lengths):
                raise UserError(f"{self.name} holds no sentence: {len(lengths)} rows, none with text.")
        file = MappedFile(spool.name, temporary=True)
        return file, _in_blocks(file.data, np.frombuffer(lengths, np.int64))

    def _lines(self, file: MappedFile) -> Iterator[str]:
        file.data.seek(self._skip_mark(file.data))
        for index, raw in enumerate(iter(file.data.readline, b"")):
            text = self._decode(raw, index)
            yield raw.decode(errors="replace") if text is None else text

    def _choose(self, columns: list[str], line: str = "") -> int:
        if not columns:
            raise UserError(f"{self.name}{line} has no header: its first line must name the columns.")
        named = f"its columns are {', '.join(map(repr, columns))}"
        if self.column is None:
            if len(columns) != 1:
                raise UserError(f"{self.name}{line} has {len(columns)} columns: name one with --text_column; {named}.")
            self.column = columns[0]
        if columns.count(self.column) != 1:
            number = "more than one" if self.column in columns else "no"
            hint = "" if self.column in columns else suggest(self.column, columns)
            raise UserError(f"{self.name}{line} has {number} column {self.column!r}{hint or ':'} {named}.")
        return columns.index(self.column)

    def _csv(self, file: MappedFile) -> Iterator[bytes]:
        csv.field_size_limit(max(csv.field_size_limit(), len(file.data)))  # its default refuses a cell of 128 KiB
        rows = csv.reader(self._lines(file), strict=True)
        try:
            yield from self._rows(next(rows, []), ((rows.line_num, row) for row in rows))
        except csv.Error as error:
            raise UserError(
                f"{self.name}, line {rows.line_num}: not well-formed CSV ({on_one_line(error)}): a cell with a comma, "
                f"quote or line end stands in double quotes, and quotes inside it are doubled."
            ) from error

    def _tsv(self, file: MappedFile) -> Iterator[bytes]:
        rows = (line.removesuffix("\n").removesuffix("\r").split("\t") for line in self._lines(file))
        yield from self._rows(next(rows, []), enumerate(rows, start=2))

    def _rows(self, header: list[str], rows: Iterable[tuple[int, list[str]]]) -> Iterator[bytes]:
        at = self._choose(header)
        for number, row in rows:
            if row not in ([], [""]) and len(row) != len(header):
                raise UserError(
                    f"{self.name}, line {number} has {len(row)} cells, but the header has {len(header)}: mend the "
                    f"line (.csv: quote cells that hold commas; plain sentences go into a .txt file)."
                )
            yield row[at].encode() if len(row) == len(header) else b""

    def _jsonl(self, file: MappedFile) -> Iterator[bytes]:
        for number, line in enumerate(self._lines(file), start=1):
            at = f", line {number}"
            where = self.name + at
            if not line.strip():
                yield b""
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{where}: not JSON ({on_one_line(error)}): give one object a line.") from error
            if not isinstance(row, dict):
                raise UserError(f"{where}: a JSON {type(row).__name__}, not an object: give one object a line.")
            if self.column is None or self.column not in row:
                self._choose(list(row), at)
            text = row[self.column]
            if not isinstance(text, str | None):
                raise UserError(f"{where}: {self.column!r} must be a string or null, not {json.dumps(text)[:80]}.")
            yield self._encode(text or "", where)

    def _encode(self, text: str, where: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError as error:  # JSON's \ud800, half of a character
            if self.errors == "strict":
                raise UserError(
                    f"{where}: the escape \\u{ord(text[error.start]):04x} is half a character and cannot be UTF-8: "
                    f"mend it, or put U+FFFD there with --encoding_errors replace."
                ) from error
            self.undecodable += 1
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()

    def _parquet(self, file: MappedFile) -> Iterator[bytes]:
        import pyarrow
        from pyarrow import parquet

        try:
            table = parquet.ParquetFile(pyarrow.py_buffer(file.data))
            yield from self._arrow(table.schema_arrow, lambda name: table.iter_batches(8192, columns=[name]))
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(
                f"{self.name} is not a whole Parquet file ({on_one_line(error)}): get it again."
            ) from error

    def _arrow(
        self, schema: pyarrow.Schema, batches: Callable[[str], Iterable[pyarrow.RecordBatch]]
    ) -> Iterator[bytes]:
        import pyarrow

        column = schema.names[self._choose(schema.names)]
        kind, row = schema.field(column).type, 0
        if pyarrow.types.is_dictionary(kind):
            kind = kind.value_type
        if not any(
            test(kind) for test in (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_null)
        ):
            raise UserError(f"{self.name}: column {self.column!r} must hold strings, not {kind}.")
        for batch in batches(column):
            for cell in batch.column(0).cast(kind).cast(pyarrow.large_binary()).to_pylist():
                text = self._decode(cell or b"", row)
                yield (cell or b"") if text is not None else cell.decode(errors="replace").encode()
                row += 1


def _in_blocks(data: mmap.mmap, lengths: np.ndarray) -> Iterator[Lines]:
    """Cells that lie one after the other, some 4 MB at a time."""
    ends = np.cumsum(lengths)
    starts, first = ends - lengths, 0
    while first < len(ends):
        offset = int(starts[first])
        last = max(first + 1, int(np.searchsorted(ends, offset + BLOCK)))
        yield Lines(offset, data[offset : ends[last - 1]], starts[first:last] - offset, ends[first:last] - offset, [])
        first = last


def on_one_line(error: Exception) -> str:
    """A foreign error's message as one clause of at most 300 characters."""
    return " ".join(str(error).split()).replace(". ", "; ").rstrip(".")[:300] or type(error).__name__
