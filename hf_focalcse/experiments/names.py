"""Names that distinguish paths without showing the paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path


def tell_apart(names: Sequence[str], paths: Sequence[str], private: bool = False) -> list[str]:
    """``names`` of different ``paths``, where equal names are preceded by one or two folders or followed by a hash.

    private: do not show the first folder of a path, nor the second of an absolute one.
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
    """The folders above the last part that may be shown."""
    rooted = re.match(r"[/\\~.]|\w:", path) is not None
    named = [part for part in re.split(r"[/\\]", path)[:-1] if not re.fullmatch(r"\.*|~.*|\w:", part)]
    return named[rooted + private :]


def with_folders_above(place: Path, name: str) -> str:
    """``place`` as a path whose last part stands for all of ``name``."""
    return "/".join([*place.parts[: -len(Path(name).parts)], "_"])
