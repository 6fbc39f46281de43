"""A file, packed or not -> a memory map of it, and its bytes -> UTF-8 text line by line.

Only ``\\n`` and ``\\r\\n`` end a line: a lone ``\\r``, U+2028, ``\\x0b`` and NUL stay inside it, unless no line of the
file ends in ``\\n``. A UTF-8 byte order mark at the start is left out. A plain file is mapped where it lies; a packed
one, one in another encoding and one whose lines end in ``\\r`` is first written to a temporary file.
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
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UserError, on_one_line
from .detect import HEAD, is_windows_text, marked_encoding, signature, transcoded, unmarked_encoding
from .reading import AS_USUAL, BINARY, NO_HINTS, Hints, Reading

BLOCK = 1 << 20  # bytes copied or looked at together


REPLACEMENT = "\ufffd".encode()


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
            self._number: int = os.dup(file.fileno())
            weakref.finalize(self, _close, self._number)

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
            raise self._changed()

    def __len__(self) -> int:
        return len(self.data)

    def read(self, start: int, end: int) -> bytes:
        """The bytes between two places.

        Raises:
            UserError: the file was written to since it was opened. They are read from the file, not from the map: the
                system ends a process that looks at a map of a file which has been cut.
        """
        now = os.fstat(self._number)
        if (now.st_mtime_ns, now.st_size) != self.stamp:
            raise self._changed()
        return os.pread(self._number, end - start, start) if hasattr(os, "pread") else self.data[start:end]

    def _changed(self) -> UserError:
        return UserError(
            f"{self.path} was changed while it was in use, so that a run would not be of the text that it records; "
            "put the file back as it was and go on with --resume_from_checkpoint last, or start again"
        )

    def release(self) -> None:
        """Unmap the pages seen so far (the system keeps them cached), so that a scan takes little memory."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)


def _close(number: int) -> None:
    with suppress(OSError):
        os.close(number)


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


class Input:
    """One file or table: its name for messages, how its bytes become text, and how many lines are not UTF-8.

    Args:
        name: of the file, or of a table on the Hub.
        reading: how it is read; with errors "replace", the lines in which bytes were replaced are counted.
        unit: "line" of a text, "row" of a table that has no lines.
    """

    def __init__(self, name: str, reading: Reading = AS_USUAL, hints: Hints = NO_HINTS, unit: str = "line"):
        self.name, self.reading, self.errors, self.hints, self.unit = name, reading, reading.errors, hints, unit
        self.undecodable = 0  # lines in which bytes were replaced
        self.notes: list[str] = []  # how it was read, where that is not plain

    def note(self, text: str) -> None:
        """Keep what a person should know of how the file was read, once."""
        if text not in self.notes:
            self.notes.append(text)

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
        if kind in BINARY:
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
            mapped = MappedFile(path, temporary=zipped)
            return kind, mapped if kind in BINARY else self._as_lines(mapped)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{self.name} cannot be read{' and unpacked' * zipped} ({on_one_line(error)}); check that the file is "
                f"whole, that you may read it, and that {tempfile.gettempdir()} has room"
            ) from error

    def _as_lines(self, file: MappedFile) -> MappedFile:
        """The file as UTF-8 with line ends, itself where it is so already.

        Raises:
            UserError: it is of another format, or in another encoding than was said.
        """
        head = file.data[:HEAD]
        if what := signature(head):
            raise UserError(f"{self.name} is {what}")
        encoding = self.reading.encoding or marked_encoding(head)
        if encoding is None and (guess := unmarked_encoding(head)):
            remedy = f", or give --encoding {guess}" if self.hints.encoding else ""
            raise UserError(
                f"{self.name} seems to be UTF-16 without a byte order mark; convert it to UTF-8, as with `iconv -f "
                f"{guess.upper()} -t UTF-8`{remedy}"
            )
        if encoding is not None and encoding.lower().replace("_", "-") not in ("utf-8", "utf8", "utf-8-sig"):
            self.note(f"{self.name} was read as {encoding}")
            try:
                file = self._rewritten(transcoded(file.data, encoding, BLOCK, self.errors))
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.name}, {error.reason}: byte 0x{error.object[error.start]:02x} is not {encoding}; give the "
                    f"encoding that the file has, or convert it to UTF-8{self.hints.undecodable}"
                ) from error
            if self.errors == "replace":
                self.undecodable += sum(REPLACEMENT in line for line in iter(file.data.readline, b""))
        if file.data.find(b"\n") < 0 and file.data[: len(file) - 1].find(b"\r") >= 0:
            self.note(f"the lines of {self.name} end in \\r alone, as on old Macs, and were split there")
            blocks = (file.data[at : at + BLOCK] for at in range(0, len(file), BLOCK))
            file = self._rewritten(block.replace(b"\r", b"\n") for block in blocks)
        return file

    def _rewritten(self, blocks: Iterator[bytes]) -> MappedFile:
        with temporary_file() as file:
            for block in blocks:
                file.write(block)
        return MappedFile(file.name, temporary=True)

    def begin(self, data: mmap.mmap) -> int:
        """Where the text begins, after a byte order mark."""
        return 3 if data[:3] == b"\xef\xbb\xbf" else 0

    def head(self, file: MappedFile, count: int) -> list[str]:
        """The first lines that are not blank; they are read again where they count."""
        before = self.undecodable
        some = (line for line in self.lines(file) if line.strip())
        found = list(islice(some, count))
        self.undecodable = before
        return found

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
                windows = is_windows_text(raw.strip())
                name = self.hints.encoding.format("cp1252" if windows else "NAME") if self.hints.encoding else ""
                looks = "it reads well as cp1252 (Windows), so " if windows else ""
                raise UserError(
                    f"{self.at(number)}, byte {error.start + 1} of the {self.unit} (0x{raw[error.start]:02x}) is not "
                    f"UTF-8; {looks}convert the file to UTF-8{', as with `iconv -f CP1252 -t UTF-8`' * windows}"
                    f"{name}{self.hints.undecodable}"
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
