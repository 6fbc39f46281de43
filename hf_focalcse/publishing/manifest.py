"""export.json <-> the files that an export wrote, with their sha256, and its card as it was generated."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UserError, on_one_line
from ..runs.atomic import write_json
from ..runs.record import file_sha256

MANIFEST, CARD = "export.json", "README.md"
FORMAT = 1
MADE = ("plots/", ".eval_results/")  # the folders of what is made from run.json and results.json
IGNORED = (".git/", ".cache/")  # what git and the Hub's client keep in a folder


def is_export(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """``files``: name -> sha256; ``card``: the text of the card as generated, None without one.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / MANIFEST
    try:
        return parse_manifest(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{file} is damaged ({on_one_line(error)}); delete the folder and export the training folder again"
        ) from error


def parse_manifest(text: str) -> dict[str, Any]:
    """The content of an export.json, with ``files`` and ``card``.

    Raises:
        ValueError: it is something else, or names a file outside of its folder.
    """
    content = json.loads(text)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not isinstance(content.get("card"), str | None):
        raise ValueError("it does not list the files of an export")
    names = {str(name).replace("\\", "/"): sha256 for name, sha256 in files.items()}  # version 0.1 on Windows
    for name in names:
        if name.startswith("/") or ":" in name.split("/")[0] or ".." in name.split("/"):
            raise ValueError(f"it lists {name!r}, which lies outside of the folder")
    return {**content, "files": names, "card": content.get("card")}


def write_manifest(folder: Path, names: Iterable[str], card: str | None, kept: dict[str, str] | None = None) -> None:
    """names: the files of the folder that the export wrote. kept: name -> sha256 of files that may lie elsewhere."""
    files = {name: file_sha256(folder / name) for name in sorted(names) if name not in (CARD, MANIFEST)}
    write_json(folder / MANIFEST, {"format": FORMAT, "files": {**(kept or {}), **files}, "card": card})


def files_in(folder: Path) -> list[str]:
    """Names relative to the folder."""
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in names if not name.startswith(IGNORED)]


def foreign_files(folder: Path) -> list[str]:
    """The files of an export that it did not write."""
    own = {*read_manifest(folder)["files"], CARD, MANIFEST}
    return [name for name in files_in(folder) if name not in own]


def shortened(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
