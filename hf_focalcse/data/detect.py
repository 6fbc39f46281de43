"""The bytes of a file -> what they are, where they are not the UTF-8 lines that they should be."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

HEAD = 1 << 16  # bytes that are looked at
MANY = 0.3  # share of NULs, at every second byte, by which UTF-16 is known
SIGNATURES = {  # the first bytes of files that hold no lines of text -> what they are
    b"%PDF-": "a PDF; extract its text first",
    b"PK\x03\x04": "a zip file or an office document; unpack it or save it as text (a table of Excel must be called "
    ".xlsx)",
    b"\x1f\x8b": "packed with gzip; call it .gz after its ending, such as .txt.gz",
    b"\xfd7zXZ\x00": "packed with xz; unpack it, or pack it with gzip",
    b"BZh": "packed with bzip2; unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it, or pack it with gzip",
    b"PAR1": "a Parquet file; call it .parquet",
    b"ARROW1": "an Arrow file; save it as .parquet",
    b"SQLite format 3\x00": "a database; export its text",
    b"\xd0\xcf\x11\xe0": "an old office document; save it as text or .xlsx",
    b"{\\rtf": "rich text; save it as plain text",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"version https://git-lfs": "a pointer of Git LFS, not the file; fetch it with git lfs pull",
}
MARKS = {  # the longer first: the mark of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
TYPOGRAPHY = "‘’“”‚„–—…•€£§°«»¿¡®©™·½¼¾×\xa0"  # what cp1252 has besides letters


def signature(head: bytes) -> str | None:
    """What a file is whose first bytes are those of another format."""
    return next((what for start, what in SIGNATURES.items() if head.startswith(start)), None)


def marked_encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark names, other than UTF-8."""
    return next((name for mark, name in MARKS.items() if head.startswith(mark)), None)


def unmarked_encoding(head: bytes) -> str | None:
    """UTF-16 without a mark, known by the NUL in most pairs of bytes."""
    pairs = max(len(head) // 2, 1)
    odd, even = head[1::2].count(0) / pairs, head[0::2].count(0) / pairs
    if max(odd, even) < MANY or min(odd, even) > MANY / 3:
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def is_windows_text(raw: bytes) -> bool:
    """Whether bytes that are not UTF-8 read well as cp1252, Western text of Windows."""
    try:
        text = raw.decode("cp1252")
    except UnicodeDecodeError:
        return False
    beyond = [c for c in text if ord(c) > 127]
    return all(c.isalpha() or c in TYPOGRAPHY for c in beyond) and len(beyond) * 3 <= max(len(text), 3)


def transcoded(data: Any, encoding: str, block: int, errors: str = "strict") -> Iterator[bytes]:
    """Bytes in another encoding -> the same text in UTF-8, block by block. errors: "replace" puts U+FFFD in the place
    of bytes that are not of the encoding.

    Raises:
        UnicodeDecodeError: bytes are not of that encoding; its ``start`` counts from the beginning of a block, and
            its ``reason`` ends with the number of the line.
    """
    decoder, lines = codecs.getincrementaldecoder(encoding)(errors), 1
    for start in range(0, len(data), block):
        raw = data[start : start + block]
        try:
            text = decoder.decode(raw, final=start + block >= len(data))
        except UnicodeDecodeError as error:
            line = lines + error.object[: error.start].decode(encoding, "ignore").count("\n")
            raise UnicodeDecodeError(encoding, raw, error.start, error.end, f"line {line}") from error
        lines += text.count("\n")
        yield text.encode("utf-8", "surrogatepass")
