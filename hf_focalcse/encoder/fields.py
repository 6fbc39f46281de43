"""The keys of a JSON file that somebody else wrote, each of which is checked for its type as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError

MISSING = object()
KINDS: dict[type, str] = {  # what a value may be -> how that is said
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
}


class Fields:
    """What a file holds, less the keys that were taken; ``rest`` is what nobody asked for.

    file: its name. name: the folder or repository that it lies in.
    """

    def __init__(self, content: Mapping[str, Any], file: str, name: str):
        self.rest, self.file, self.name = dict(content), file, name

    def take(self, key: str, kind: type, default: Any = MISSING, least: int | None = None) -> Any:
        """The value of a key, which is not asked for again; null and a missing key are ``default``.

        least: the lowest number that is allowed.

        Raises:
            UserError: it is of another type, below ``least``, or missing where there is no default.
        """
        value = self.rest.pop(key, None)
        if value is None:
            if default is MISSING:
                raise self.wrong(f"has no {key}, which must be {self.wanted(kind, least)}")
            return default
        fits = isinstance(value, (int, float) if kind is float else kind) and not (
            isinstance(value, bool) and kind is not bool
        )
        if not fits or (least is not None and value < least):
            raise self.wrong(f"has {key} {value!r:.60}; it must be {self.wanted(kind, least)}")
        return value

    def texts(self, key: str) -> dict[str, str]:
        """A mapping of names to texts; null as a text is the empty one."""
        found = {name: "" if text is None else text for name, text in self.take(key, dict, {}).items()}
        for name, text in found.items():
            if not isinstance(text, str):
                raise self.wrong(f"has {key} with {name!r} {text!r:.60}; each must be a text")
        return found

    def sizes(self, key: str) -> list[int]:
        """A list of numbers of dimensions, each at least 1; null and a missing key are none."""
        found: list[int] = self.take(key, list, [])
        for size in found:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise self.wrong(f"has {key} with {size!r:.60}; each must be {self.wanted(int, 1)}")
        return found

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.file} of {self.name!r} {what}; correct it, or copy it again from its source")

    @staticmethod
    def wanted(kind: type, least: int | None) -> str:
        return KINDS[kind] + ("" if least is None else f" from {least}")
