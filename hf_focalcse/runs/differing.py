"""In which named values two descriptions of a run are not equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name, in order -> both values, where they are not equal; a name that is missing has the value None."""
    both = {key: (one.get(key), other.get(key)) for key in sorted(one.keys() | other.keys())}
    return {key: (a, b) for key, (a, b) in both.items() if a != b}
