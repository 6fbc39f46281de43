"""The first sheet of an Excel file -> rows, through openpyxl."""

from __future__ import annotations

import io
import zipfile

from ..errors import UserError, on_one_line
from .files import Input, MappedFile
from .rows import Choose, Rows


def read_sheet(source: Input, file: MappedFile, choose: Choose) -> Rows:
    """The rows under the first one, which names the columns; of formulas, the values that Excel has computed.

    Raises:
        UserError: openpyxl is not installed, or the file is damaged.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise UserError(
            f"{source.name} is a table of Excel, which openpyxl reads; install it with "
            "pip install 'hf_focalcse[xlsx]', or save the table as .csv (comma delimited, UTF-8)"
        ) from error
    try:
        book = openpyxl.load_workbook(io.BytesIO(file.data[:]), read_only=True, data_only=True)
        sheet = book.worksheets[0]
        table = [list(row) for row in sheet.iter_rows(values_only=True)]
    except (zipfile.BadZipFile, KeyError, ValueError, IndexError, OSError) as error:
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
    for number, row in enumerate(table, start=1):
        if number > filled[0][0]:
            yield number, {name: row[i] if i < len(row) else None for name, i in wanted}
