"""JSON, one object a line or one array of objects or strings -> rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import UserError, on_one_line
from .files import Input, MappedFile
from .rows import Choose, Rows

TEXT = "text"  # the column of an array of strings


def read_jsonl(source: Input, file: MappedFile, choose: Choose) -> Rows:
    """One object a line; a file that is one array over several lines is read as one."""
    first = "".join(source.head(file, 1)).strip()
    if first.startswith("[") and file.data[:].rstrip().endswith(b"]") and not _is_whole(first):
        source.note(f"{source.name} is one JSON array, and was read as one")
        return _objects(source, _array(source, file), choose)
    return _objects(source, _lines(source, file), choose)


def read_json(source: Input, file: MappedFile, choose: Choose) -> Rows:
    """An array of objects or strings, an object that holds one such array, or else one object a line."""
    first = "".join(source.head(file, 1)).strip()
    if first.startswith("{") and _is_whole(first) and len(first) < len(file.data[:].strip()):
        source.note(f"{source.name} has one JSON object a line, and was read so")
        return _objects(source, _lines(source, file), choose)
    return _objects(source, _array(source, file), choose)


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(source: Input, file: MappedFile) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(source.lines(file), start=1):
        if not line.strip():
            yield number, None
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source.at(number)}: not JSON ({on_one_line(error)}); give one object a line") from error
        if not isinstance(row, dict):
            raise UserError(f"{source.at(number)}: a JSON {type(row).__name__}, not an object; give one object a line")
        yield number, row


def _array(source: Input, file: MappedFile) -> Iterator[tuple[int, Any]]:
    text = "".join(source.lines(file))
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source.name} is not JSON ({on_one_line(error)}); give an array of objects") from error
    if isinstance(whole, dict):
        arrays = {name: value for name, value in whole.items() if isinstance(value, list)}
        if len(arrays) != 1:
            raise UserError(
                f"{source.name} is one JSON object with {len(arrays)} arrays ({', '.join(map(repr, whole))[:120]}); "
                "give one array of objects or, in a .jsonl, one object a line"
            )
        name, whole = next(iter(arrays.items()))
        source.note(f"the rows of {source.name} are the array {name!r} in it")
    if not isinstance(whole, list):
        raise UserError(f"{source.name} is a JSON {type(whole).__name__}; give an array of objects")
    source.unit = "item"
    for number, row in enumerate(whole, start=1):
        if not isinstance(row, dict | str | None):
            raise UserError(
                f"{source.at(number)}: a JSON {type(row).__name__}, not an object; give an array of objects or strings"
            )
        yield number, {TEXT: row} if isinstance(row, str) else row


def _objects(source: Input, rows: Iterator[tuple[int, Any]], choose: Choose) -> Rows:
    columns: list[str] | None = None
    wanted: Sequence[str] = ()
    for number, row in rows:
        if not row:
            yield number, {}
            continue
        if list(row) != columns:
            columns = list(row)
            wanted = choose(columns, source.at(number))
        yield number, {name: mended(source, row[name], number) for name in wanted}


def mended(source: Input, value: Any, number: int) -> Any:
    """The value without half characters in its texts."""
    if isinstance(value, dict):
        return {name: mended(source, part, number) for name, part in value.items()}
    return source.mend(value, number) if isinstance(value, str) else value
