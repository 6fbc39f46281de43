"""Names by which different paths are told apart without showing the paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path


def tell_apart(names: Sequence[str], paths: Sequence[str], private: bool = False) -> list[str]:
    """The names of different paths; equal ones get one or two folders of their paths before, or a short hash behind.

    private: the first folder of a path, from the root the first two, are not shown.
    """
    told = list(names)
    for depth in (1, 2):
        for i in [i for i, name in enumerate(told) if told.count(name) > 1]:
            told[i] = "/".join([*_folders(paths[i], private)[-depth:], names[i]])
    for i, name in enumerate(names):
        if told.count(told[i]) > 1 or (names.count(name) > 1 and told[i] == name):
            told[i] = f"{name} (path {sha256(paths[i].encode()).hexdigest()[:6]})"
    return told


def _folders(path: str, private: bool) -> list[str]:
    """Those above the last part, that may be shown."""
    rooted = re.match(r"[/\\~.]|\w:", path) is not None
    named = [part for part in re.split(r"[/\\]", path)[:-1] if not re.fullmatch(r"\.*|~.*|\w:", part)]
    return named[rooted + private :]


def with_folders_above(place: Path, name: str) -> str:
    """``place`` as the path whose last part is all of ``name``."""
    return "/".join([*place.parts[: -len(Path(name).parts)], "_"])
