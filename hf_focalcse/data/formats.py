"""A table in any format (CSV, TSV, JSON, Parquet, Excel, Arrow) -> its rows, with the columns that are wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, on_one_line, suggest
from .delimited import read_delimited
from .files import Input, MappedFile
from .json_rows import read_json, read_jsonl
from .reading import TABLES, TEXTS
from .rows import Choose, Rows
from .sheets import read_sheet

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)
ROWS = 8192  # of an Arrow table, read together


def read_records(
    path: Path, columns: Sequence[str], also: Mapping[str, Sequence[str]] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place for messages, row) for each row of a table in any format; every row has ``columns``.

    Cells of .csv and .tsv are strings, those of other formats are what they are there. How the file was read is logged
    where that is not plain. also: column -> what else it may be called; a row has it under its own name.

    Raises:
        UserError: the file cannot be read, a row is not whole, or a column is missing; with file and line.
    """
    source = Input(str(path))

    def choose(found: list[str], where: str) -> Sequence[str]:
        require_columns(called(columns, found, also), found, where)
        return list(dict.fromkeys(found))

    for number, row in read_rows(source, *source.open(path, TABLES), choose):
        if row:
            names = zip(columns, called(columns, list(row), also), strict=True)
            yield source.at(number), row | {column: row[name] for column, name in names}
    for note in source.notes:
        logger.warning("%s", note)


def open_table(source: Input, path: Path) -> tuple[str, MappedFile]:
    """(format, mapped file) of a table; a file of plain text is one where its delimiter is named.

    Raises:
        UserError: as for `Input.open`.
    """
    return source.open(path, TABLES if source.reading.plain else (*TEXTS, *TABLES))


def called(columns: Sequence[str], found: Sequence[str], also: Mapping[str, Sequence[str]] | None) -> list[str]:
    """What each of ``columns`` is called among ``found``: as it is, else by the first of its other names there."""
    others = also or {}
    return [next((n for n in (name, *others.get(name, ())) if n in found), name) for name in columns]


def require_columns(needed: Sequence[str], columns: list[str], where: str) -> None:
    """Raise UserError unless ``columns`` has each of ``needed`` exactly once."""
    for column in needed:
        if columns.count(column) != 1:
            others = [name for name in columns if name not in needed]
            number, near = ("more than one", "") if column in columns else ("no", suggest(column, others))
            every = f"; needed are {', '.join(needed)}" if len(needed) > 1 else ""
            raise UserError(f"{where} has {number} column {column!r}{near}{every}; {named(columns)}")


def named(columns: Iterable[str]) -> str:
    """The names of columns for a message; a long one is cut, since it may be a sentence."""
    return f"its columns are {', '.join(repr(column[:40]) for column in columns)}"


def read_rows(source: Input, kind: str, file: MappedFile, choose: Choose) -> Rows:
    """The rows of a table in the format ``kind``; ``choose`` is asked once for a header, or for each JSON object."""
    reader = READERS.get(kind)
    return reader(source, file, choose) if reader else read_delimited(source, kind, file, choose)


def _parquet(source: Input, file: MappedFile, choose: Choose) -> Rows:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(pyarrow.py_buffer(file.data))
        batches = lambda names: table.iter_batches(ROWS, columns=names)  # noqa: E731
        yield from arrow_rows(source, table.schema_arrow.names, batches, choose)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"{source.name} is not a whole Parquet file ({on_one_line(error)}); download or write it again"
        ) from error


def arrow_rows(
    source: Input,
    columns: list[str],
    batches: Callable[[Sequence[str]], Iterable[pyarrow.RecordBatch]],
    choose: Choose,
) -> Rows:
    """The rows of an Arrow table with ``columns``; ``batches``: columns -> record batches that hold them."""
    wanted, before = choose(columns, source.name), 0
    for batch in batches(wanted):
        cells = [_cells(source, batch.column(name), before) for name in wanted]
        for number, row in enumerate(zip(*cells, strict=True), start=before + 1):
            yield number, dict(zip(wanted, row, strict=True))
        before += len(batch)


def _cells(source: Input, column: pyarrow.Array, before: int) -> list[Any]:
    """The values of a column, of which ``before`` rows were read already; strings are decoded, and refused, here."""
    from pyarrow import large_binary, types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        return list(column.to_pylist())
    raw = column.cast(kind).cast(large_binary()).to_pylist()  # Arrow does not check that a string is UTF-8
    try:
        return [cell if cell is None else cell.decode() for cell in raw]
    except UnicodeDecodeError:  # one by one, to say which
        return [cell if cell is None else source.decode(cell, number) for number, cell in enumerate(raw, before + 1)]


READERS: dict[str, Callable[[Input, MappedFile, Choose], Rows]] = {  # all others have cells between signs
    "jsonl": read_jsonl,
    "json": read_json,
    "parquet": _parquet,
    "xlsx": read_sheet,
}
