"""A file is written whole or not at all: into a draft beside it, which then takes its place."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError


@contextmanager
def draft(path: str | Path) -> Iterator[Path]:
    """The path to write to; the file there replaces ``path`` when the block ends, and is deleted when it fails.

    A folder that is missing is made. Close what you open inside the block.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> Path:
    with draft(path) as part:
        part.write_bytes(content)
    return Path(path)


def write_json(path: str | Path, content: Any, strict: bool = False) -> Path:
    """Indented JSON, which has neither NaN nor infinity: they become null.

    Raises:
        ValueError: there is a NaN or an infinity, and ``strict`` refuses them.
    """
    content = content if strict else without_nan(content)
    return write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def without_nan(content: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(content, dict):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def require_writable(path: str | Path | None, flag: str) -> None:
    """Check before the work that a file can be written at ``path``, the value of ``flag``; None is allowed.

    Raises:
        UserError: the folder is missing or not writable, or ``path`` is something other than a file.
    """
    if path is None:
        return
    path = Path(path)
    there = path.exists()
    fitting = path.is_file() if there else path.parent.is_dir()
    if not fitting or not os.access(path if there else path.parent, os.W_OK):
        raise UserError(f"{flag} {path}: no file can be written there; give a file in a folder that is writable")
