"""A file, packed or not -> a memory map of it, and its bytes -> UTF-8 text line by line.

Only ``\\n`` and ``\\r\\n`` end a line: a lone ``\\r``, U+2028, ``\\x0b`` and NUL stay inside it. A UTF-8 byte order
mark at the start is left out. A plain file is mapped where it lies; a packed one is first unpacked to a temporary
file.
"""

from __future__ import annotations

import gzip
import mmap
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError, on_one_line

TABLES = ("csv", "tsv", "jsonl", "parquet")
TEXTS = ("txt", "md")  # one sentence on each line
FORMATS = (*TEXTS, *TABLES)
BLOCK = 1 << 20  # bytes copied or looked at together


class NoText(UserError):
    """A file without a sentence. lines: how many it has."""

    def __init__(self, message: str, lines: int = 0):
        super().__init__(message)
        self.lines = lines


class MappedFile:
    """A read-only memory map: a spawned worker reopens it by path, and a temporary file ends with its maker."""

    def __init__(self, path: str | Path, temporary: bool = False):
        self.path = os.path.abspath(path)
        if temporary:
            weakref.finalize(self, _remove, self.path, os.getpid())
        self._open()
        if temporary:
            self._lose_name()

    def _open(self) -> None:
        with open(self.path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.stamp = os.fstat(file.fileno()).st_mtime_ns, len(self.data)

    def _lose_name(self) -> None:
        """Take the name of a temporary file away, where the system can open it without: then nothing is left of it,
        however this process ends."""
        if Path("/proc/self/fd").is_dir():
            kept = os.open(self.path, os.O_RDONLY)
            weakref.finalize(self, os.close, kept)
            os.unlink(self.path)
            self.path = f"/proc/{os.getpid()}/fd/{kept}"

    def __getstate__(self) -> dict:
        return {"path": self.path, "stamp": self.stamp}

    def __setstate__(self, state: dict) -> None:
        self.path = state["path"]
        self._open()
        if self.stamp != state["stamp"]:
            raise UserError(f"{self.path} was changed while it was in use; start again and leave the file alone")

    def __len__(self) -> int:
        return len(self.data)

    def read(self, start: int, end: int) -> bytes:
        return self.data[start:end]

    def release(self) -> None:
        """Unmap the pages seen so far (the system keeps them cached), so that a scan takes little memory."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker inherits the finalizer, but not the file
        Path(path).unlink(missing_ok=True)


@contextmanager
def temporary_file() -> Iterator[Any]:
    """A temporary file to write and then to map; it is removed here only when writing fails."""
    with tempfile.NamedTemporaryFile(prefix="focalcse-", delete=False) as file:
        try:
            yield file
        except BaseException:
            os.unlink(file.name)
            raise


class Hints(NamedTuple):
    """What a message about a damaged file offers besides mending the file; the words follow the remedy."""

    undecodable: str = ""
    ragged: str = ""


NO_HINTS = Hints()


class Input:
    """One file or table: its name for messages, how its bytes become text, and how many lines are not UTF-8.

    Args:
        name: of the file, or of a table on the Hub.
        errors: "strict" refuses bytes that are not UTF-8, "replace" puts U+FFFD in their place and counts the lines.
        unit: "line" of a text, "row" of a table that has no lines.
    """

    def __init__(self, name: str, errors: str = "strict", hints: Hints = NO_HINTS, unit: str = "line"):
        self.name, self.errors, self.hints, self.unit = name, errors, hints, unit
        self.undecodable = 0  # lines in which bytes were replaced

    def at(self, number: int) -> str:
        """The place of a line, from 1, for messages."""
        return f"{self.name}, {self.unit} {number}"

    def open(self, path: Path, formats: Sequence[str] = ()) -> tuple[str, MappedFile]:
        """(format, mapped file): the name tells the format, which must be one of ``formats`` where these are given.

        Raises:
            UserError: there is no such file, it is a folder or empty, its format is another, or it cannot be read.
        """
        allowed = f"{', '.join(f'.{name}' for name in formats)}, each also with .gz"
        if path.is_dir():
            raise UserError(f"{self.name} is a folder; name a file in it{f' ({allowed})' * bool(formats)}")
        if not path.exists():
            raise UserError(f"no such file: {self.name}; check the path")
        kind = Path(self.name).name.lower().removesuffix(".gz").rpartition(".")[2]
        if formats and kind not in formats:
            raise UserError(f"cannot read {self.name}: the name must end in {allowed}")
        if kind == "parquet":
            self.unit = "row"
        zipped = self.name.lower().endswith(".gz")
        empty = f"{self.name} is empty; name a file with text in it"
        try:
            if zipped:
                with gzip.open(path) as packed, temporary_file() as file:
                    shutil.copyfileobj(packed, file, BLOCK)
                    if not file.tell():
                        raise NoText(empty)
                path = Path(file.name)
            if not path.stat().st_size:
                raise NoText(empty)
            return kind, MappedFile(path, temporary=zipped)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{self.name} cannot be read{' and unpacked' * zipped} ({on_one_line(error)}); check that the file is "
                f"whole, that you may read it, and that {tempfile.gettempdir()} has room"
            ) from error

    def begin(self, data: mmap.mmap) -> int:
        """Where the text begins, after a byte order mark."""
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise UserError(f"{self.name} is UTF-16; convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
        return 3 if data[:3] == b"\xef\xbb\xbf" else 0

    def lines(self, file: MappedFile) -> Iterator[str]:
        """The text of each line with what ends it, ``\\n`` or ``\\r\\n``."""
        file.data.seek(self.begin(file.data))
        for number, raw in enumerate(iter(file.data.readline, b""), start=1):
            yield self.decode(raw, number)

    def decode(self, raw: bytes, number: int) -> str:
        """The text of a line or cell; ``number`` is the line's, from 1."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise UserError(
                    f"{self.at(number)}, byte {error.start + 1} of the {self.unit} (0x{raw[error.start]:02x}) is not "
                    f"UTF-8; convert the file to UTF-8{self.hints.undecodable}"
                ) from error
            self.undecodable += 1
            return raw.decode(errors="replace")

    def mend(self, text: str, number: int) -> str:
        r"""Text without half characters, which JSON's escapes such as \ud800 make."""
        try:
            text.encode()
            return text
        except UnicodeEncodeError as error:
            if self.errors == "strict":
                raise UserError(
                    f"{self.at(number)}: the escape \\u{ord(text[error.start]):04x} is half a character, which UTF-8 "
                    f"cannot hold; mend the escape{self.hints.undecodable}"
                ) from error
            self.undecodable += 1
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def without_end(line: str) -> str:
    r"""A line without the \n or \r\n at its end."""
    return line.removesuffix("\n").removesuffix("\r")


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file of any name, or of its .gz, without their ends."""
    source = Input(str(path))
    return [without_end(line) for line in source.lines(source.open(path)[1])]
