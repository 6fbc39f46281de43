"""What all readers of tables give, and how they are asked for columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

# The columns of a table, or of one JSON object, and their place for messages -> those to read. Raises UserError.
Choose = Callable[[list[str], str], Sequence[str]]
# The number of each line or row, from 1, and its cells by column; a blank line has none.
Rows = Iterator[tuple[int, dict[str, Any]]]


def inside(value: Any, path: Sequence[str]) -> Any:
    """What lies in a nested object under names one after the other; None where one of the objects is null.

    Raises:
        KeyError: there is no such name.
    """
    for name in path:
        if value is None:
            return None
        if not isinstance(value, dict) or name not in value:
            raise KeyError(name)
        value = value[name]
    return value


def texts_inside(value: Any, start: str) -> Iterator[str]:
    """The dotted paths of all texts in a nested object called ``start``."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from texts_inside(part, f"{start}.{name}")
    elif isinstance(value, str):
        yield start
