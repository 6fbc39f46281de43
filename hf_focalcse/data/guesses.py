"""The first lines of a file -> the columns that they seem to have, and what else they seem to be than sentences."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

DELIMITERS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
NAMES = {sign: name for name, sign in DELIMITERS.items()}
PLAIN = "none"  # as a delimiter: each line is one text, whatever it looks like
LOOKED_AT = 200  # lines
MOST, ALL = 0.5, 0.95  # share of the lines
FEW = 5  # lines, below which only a tab says anything
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d{2,5}|#x[0-9a-fA-F]{2,4});")
NUMBER = re.compile(r"\s*[-+]?\d+([.,]\d+)?\s*")


def delimiter_of(asked: str) -> str:
    """The sign that a name, or the sign itself, stands for."""
    return DELIMITERS.get(asked, "\t" if asked == "\\t" else asked)


def shown_delimiter(sign: str) -> str:
    """How a sign is given on the command line."""
    return NAMES.get(sign, repr(sign))


def likely_delimiter(lines: Sequence[str], usual: str) -> str | None:
    """The sign that separates the cells of a table whose header is the first of the ``lines``, where it is not the
    ``usual`` one; None: the usual one, or there is one column."""
    header, rest = lines[0], lines[1:]
    if usual in header:
        return None
    for sign in DELIMITERS.values():
        cells = header.count(sign)
        alike = sum(line.count(sign) >= cells for line in rest)
        if sign != usual and cells and (not rest or alike > MOST * len(rest)):
            return sign
    return "\t" if usual != "\t" and rest and sum("\t" in line for line in rest) > MOST * len(rest) else None


def is_sentence(name: str) -> bool:
    """Whether the name of a column looks like a sentence or a number, so that a header seems to be missing."""
    words = name.split()
    return (
        len(words) > 4 or (len(words) > 1 and name.rstrip().endswith((".", "!", "?"))) or bool(NUMBER.fullmatch(name))
    )


def columns_of_plain(lines: Sequence[str]) -> str | None:
    """What separates the lines of a text file into columns; None: nothing seems to."""
    n = len(lines)
    if sum("\t" in line.strip() for line in lines) > MOST * n:
        return "\t"
    if sum(" ||| " in line for line in lines) > MOST * n:
        return "|||"
    for sign in (";", "|"):
        counts = Counter(ENTITY.sub("", line).count(sign) for line in lines)
        common, times = counts.most_common(1)[0]
        if n >= FEW and common and times >= ALL * n:
            return sign
    ends = sum(
        bool(NUMBER.fullmatch(line.rpartition(",")[2]) or NUMBER.fullmatch(line.partition(",")[0])) for line in lines
    )
    return "," if n >= FEW and ends >= ALL * n and sum("," in line for line in lines) >= ALL * n else None


def other_format(lines: Sequence[str]) -> str | None:
    """What lines are that are no sentences, with the remedy."""
    n = len(lines)
    objects = [line for line in lines if line[:1] in "{[" and line[-1:] in "}],"]
    if len(objects) > MOST * n and any(_is_json(line.rstrip(",")) for line in objects[:3]):
        return "JSON; call the file .jsonl, or .json where it is one array"
    if n >= FEW and sum(line.startswith("<") and line.endswith(">") for line in lines) > MOST * n:
        return "HTML or XML; extract its text first"
    return None


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except ValueError:
        return False


def are_quoted(cells: Sequence[str]) -> bool:
    """Whether nearly all cells stand in double quotes, which are then no part of the text."""
    some = [cell.strip() for cell in cells if cell.strip()]
    return len(some) >= FEW and sum(len(c) > 1 and c[0] == c[-1] == '"' for c in some) >= ALL * len(some)
