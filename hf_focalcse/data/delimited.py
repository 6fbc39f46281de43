"""A table whose cells lie between commas, tabs or other signs -> its rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from ..errors import UserError, on_one_line
from .files import Input, MappedFile, without_end
from .guesses import LOOKED_AT, PLAIN, are_quoted, delimiter_of, likely_delimiter, shown_delimiter
from .rows import Choose, Rows

SEP = re.compile(r'"?sep=(.)"?')  # the first line by which Excel is told the delimiter
LONG = 10  # line ends in a cell, beyond which its quote is more likely a stray one
USUAL = {"csv": (",", "double"), "tsv": ("\t", "none")}  # format -> delimiter, quotes; any other is as .tsv


def read_delimited(source: Input, kind: str, file: MappedFile, choose: Choose) -> Rows:
    """The rows under the header; a row that a cell with line ends makes has the number of its last line.

    Raises:
        UserError: the delimiter seems to be another one, a quote is stray, or a row has more or fewer cells than the
            header.
    """
    usual, usual_quotes = USUAL.get(kind, USUAL["tsv"])
    asked = source.reading.delimiter
    quotes = source.reading.quotes or usual_quotes
    some = [without_end(line) for line in source.head(file, LOOKED_AT)]
    skipped = 0
    if asked is None and some and (told := SEP.fullmatch(some[0].strip())):
        asked, skipped = told[1], 1
        source.note(f"{source.name} names its delimiter in its first line, {told[0]}")
    delimiter = delimiter_of(asked) if asked not in (None, PLAIN) else usual
    some = some[skipped:]
    if some and asked is None:
        delimiter = _likely(source, some, usual, choose)
    lines = islice(source.lines(file), skipped, None)
    if quotes == "double":
        csv.field_size_limit(max(csv.field_size_limit(), len(file.data)))  # its default refuses a cell of 128 KiB
        return _under_header(source, _quoted(source, lines, delimiter, skipped), choose)
    whole = len(some) > 0 and delimiter not in some[0] and kind == "csv"  # one column: commas are text
    cells = ([without_end(line)] if whole else without_end(line).split(delimiter) for line in lines)
    return _under_header(source, enumerate(cells, start=1 + skipped), choose)


def _likely(source: Input, some: list[str], usual: str, choose: Choose) -> str:
    """The usual delimiter, or another by which the columns that are wanted are found.

    Raises:
        UserError: it seems to be another, and it is open which column is wanted.
    """
    likely = likely_delimiter(some, usual)
    if likely is None:
        return usual
    cells = [cell.strip().strip('"') for cell in some[0].split(likely)]
    try:
        found = bool(choose(cells, source.name)) and len(cells) > 1
    except UserError:
        found = False
    if found:
        source.note(f"{source.name} was read with a {shown_delimiter(likely)} between its columns")
        return likely
    remedy = source.hints.delimiter.format(shown_delimiter(likely)) if source.hints.delimiter else ""
    raise UserError(
        f"{source.name}, line 1: the columns seem to be separated by a {shown_delimiter(likely)}, not by a "
        f"{shown_delimiter(usual)} ({some[0][:60]!r}); separate them by a {shown_delimiter(usual)}{remedy}"
    )


def _quoted(source: Input, lines: Iterator[str], delimiter: str, skipped: int) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(lines, strict=True, delimiter=delimiter)
    begun = skipped + 1
    broken = longest = 0
    sign = shown_delimiter(delimiter)
    advice = f"; a cell with a {sign}, quote or line end stands in double quotes, and quotes inside it are doubled"
    advice += source.hints.quotes
    try:
        for row in rows:
            number = rows.line_num + skipped
            if number - begun > LONG and source.reading.quotes is None:
                keep = ", or, where the text is that long, --quotes double" if source.hints.quotes else ""
                raise UserError(
                    f"{source.at(begun)}: a quote opens a cell of {number - begun + 1} lines, up to line {number}, so "
                    f"that it is likely a stray one{advice}{keep}"
                )
            broken += number > begun
            longest = max(longest, number - begun + 1)
            yield number, row
            begun = number + 1
    except csv.Error as error:
        raise UserError(f"{source.at(begun)}: not well-formed CSV ({on_one_line(error)}){advice}") from error
    if broken:
        source.note(f"{broken:,} rows of {source.name} have line ends inside quotes, the longest {longest} lines")


def _under_header(source: Input, rows: Iterable[tuple[int, list[str]]], choose: Choose) -> Rows:
    rows = iter((number, [] if row == [""] else row) for number, row in rows)
    header = next((row for _, row in rows if row), None)
    if header is None:
        raise UserError(f"{source.name} has no header; its first line must name the columns")
    wanted = [(name, header.index(name)) for name in choose(header, source.name)]
    first = list(islice(rows, LOOKED_AT))
    for name, i in wanted if source.reading.quotes is None else ():
        if are_quoted([row[i] for _, row in first if len(row) == len(header)]):
            if source.hints.quotes:
                raise UserError(
                    f"{source.name}: the cells of column {name!r} stand in double quotes, which this format has not; "
                    "give --quotes double to take them off, or --quotes none where they are part of the text"
                )
            source.note(f"the cells of column {name!r} of {source.name} stand in double quotes, which were kept")
    for number, row in chain(first, rows):
        if row and len(row) != len(header):
            raise UserError(
                f"{source.at(number)} has {len(row)} cells, but the header has {len(header)}; mend the line (in .csv, "
                f"quote cells that hold commas){source.hints.ragged}"
            )
        yield number, {name: row[i] for name, i in wanted} if row else {}
