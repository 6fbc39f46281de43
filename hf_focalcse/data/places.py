"""Names of files, folders and patterns -> the files that they stand for."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from .reading import FORMATS

MAGIC = "*?["
ENDINGS = f"{', '.join(f'.{name}' for name in FORMATS)}, each also with .gz"


class Places(NamedTuple):
    """files: in the order in which they are read, as they were named; left_out: those of a folder that are of no known
    format."""

    files: list[str]
    left_out: int


def find_files(names: Sequence[str | Path], flag: str = "--train_file") -> Places:
    """The files of each name in turn, those of a folder or a pattern sorted by their path; a file twice named is
    read once.

    As with ``data_files`` and ``data_dir`` of ``datasets``: ``*`` stays in one folder and ``**`` goes into all below
    it, a folder is read with all folders in it, and what begins with a dot is left out of both. flag: who names them.

    Raises:
        UserError: a name stands for no file.
    """
    found: dict[Path, str] = {}
    left_out = 0
    if not names or "" in names:  # an empty path would be the current folder
        raise UserError(f"{flag} is empty; give a file, a folder or a quoted pattern")
    for name in map(str, names):
        place = Path(name)
        if place.is_dir():
            inside = (file for file in sorted(place.rglob("*")) if not is_hidden(file.relative_to(place)))
            files = [file for file in inside if file.is_file()]
            known = [str(file) for file in files if ending(file) in FORMATS]
            left_out += len(files) - len(known)
            if not known:
                raise UserError(f"the folder {name} holds no file of a known format ({ENDINGS}); give another")
        elif place.exists():
            known = [name]
        elif any(sign in name for sign in MAGIC):
            known = [str(file) for file in sorted(map(Path, glob.glob(name, recursive=True))) if file.is_file()]
            if not known:
                raise UserError(
                    f"no file is called {name}; check the pattern, and that it is quoted where you type it"
                )
        else:
            raise UserError(f"no such file: {name}; check the path: {flag} is a file on this machine")
        for file in known:
            found.setdefault(Path(file).resolve(), file)
    return Places(list(found.values()), left_out)


def exists(name: str) -> bool:
    """Whether ``name`` is a file, a folder, or a pattern that stands for any."""
    return Path(name).exists() or (any(sign in name for sign in MAGIC) and bool(glob.glob(name, recursive=True)))


def ending(file: str | Path) -> str:
    """The ending of a file's name without the dot, in lower case; that before .gz where there is one."""
    return Path(file).name.lower().removesuffix(".gz").rpartition(".")[2]


def is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)
