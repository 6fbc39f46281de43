"""The first sheet of an Excel file -> rows, through openpyxl."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

from ..errors import UserError, on_one_line
from .files import Input, MappedFile
from .rows import Choose, Rows

MOST_UNPACKED = 1 << 30  # bytes; a million long sentences take a fifth of it
DAMAGED = (  # what openpyxl, and what reads ZIP and XML for it, raise for files that are damaged
    *(zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, EOFError),
    *(SyntaxError, RuntimeError),
)


def refuse_formulas(name: str, sheet: Any, table: list[list[Any]], wanted: list[tuple[str, int]]) -> None:
    """Check that no cell that is read as empty is a formula without a value, as programs other than Excel write them.

    sheet: the same sheet with its formulas in place of their values.

    Raises:
        UserError: with the first of them.
    """
    if not any(i < len(row) and row[i] is None for row in table for _, i in wanted):
        return
    sheet.reset_dimensions()
    for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
        for column, i in wanted:
            if i < len(row) and str(row[i]).startswith("=") and table[number - 1][i] is None:
                raise UserError(
                    f"{name}, row {number}: {column} is the formula {row[i][:40]!r}, whose value is not in the file; "
                    "open it in Excel or LibreOffice and save it, or save it as .csv"
                )


def read_sheet(source: Input, file: MappedFile, choose: Choose) -> Rows:
    """The rows under the first one, which names the columns; of formulas, the values that Excel has computed.

    Raises:
        UserError: openpyxl is not installed, the file is damaged or unpacks to far more than it holds, or a text is a
            formula that nobody has computed.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise UserError(
            f"{source.name} is a table of Excel, which openpyxl reads; install it with "
            "pip install 'hf_focalcse[xlsx]', or save the table as .csv (comma delimited, UTF-8)"
        ) from error
    packed = file.data[:]
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as parts:
            unpacked = sum(part.file_size for part in parts.infolist())
        if unpacked > MOST_UNPACKED:
            raise UserError(
                f"{source.name} unpacks from {len(packed):,} to {unpacked:,} bytes, more than are read "
                f"({MOST_UNPACKED:,}); save the table as .csv"
            )
        book = openpyxl.load_workbook(io.BytesIO(packed), read_only=True, data_only=True)
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # what the file says of its size may be less, or far more, than it holds
        table = [list(row) for row in sheet.iter_rows(values_only=True)]
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(
            f"{source.name} is not a whole Excel file ({on_one_line(error)}); save it again as .xlsx, or as .csv"
        ) from error
    if len(book.worksheets) > 1:
        source.note(f"of the {len(book.worksheets)} sheets of {source.name}, the first was read, {sheet.title!r}")
    filled = [(number, row) for number, row in enumerate(table, start=1) if any(cell is not None for cell in row)]
    if not filled:
        raise UserError(f"{source.name} has no header; the first row of its first sheet must name the columns")
    header = ["" if cell is None else str(cell) for cell in filled[0][1]]
    while header and not header[-1]:
        header.pop()
    wanted = [(name, header.index(name)) for name in choose(header, source.name)]
    formulas = openpyxl.load_workbook(io.BytesIO(packed), read_only=True).worksheets[0]
    refuse_formulas(source.name, formulas, table, wanted)
    for number, row in enumerate(table, start=1):
        if number > filled[0][0]:
            yield number, {name: row[i] if i < len(row) else None for name, i in wanted}
