"""A file, or a folder, is written whole or not at all: into a draft beside it, which then takes its place."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from .locking import is_free, locked

BELOW = ("plots", ".eval_results")  # the folders in an output folder that its holder writes files into, one by one
OS_ERROR = re.compile(r"(.+) \(os error (\d+)\)")
DRAFT = re.compile(r"\..+\.part-\d+")  # what a draft is called, beside what it is a draft of


@contextmanager
def failed_writes() -> Iterator[None]:
    """An OSError for the plain Exception that tokenizers raises where a file cannot be written."""
    try:
        yield
    except Exception as error:
        found = OS_ERROR.fullmatch(str(error)) if type(error) is Exception else None
        if found is None:
            raise
        raise OSError(int(found[2]), found[1]) from error


@contextmanager
def draft(path: str | Path) -> Iterator[Path]:
    """The path to write to; the file there replaces ``path`` when the block ends, and is deleted when it fails.

    A folder that is missing is made. Close what you open inside the block.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = draft_of(path)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """Where this process drafts ``path``; its name is cut where a file system would find it too long."""
    end = f".part-{os.getpid()}"
    name = path.name.encode(errors="surrogateescape")[: 254 - len(end)].decode(errors="ignore")
    return path.with_name(f".{name}{end}")


@contextmanager
def draft_folder(folder: Path) -> Iterator[Path]:
    """The same for a folder: what is there is replaced in one step, where the system can do that, and then deleted."""
    with scratch_folder(folder) as part:
        yield part
        equal_modes(part)
        if folder.exists():
            exchange(part, folder)
        else:
            os.rename(part, folder)


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder``, deleted at the end; what killed processes have left there is deleted first."""
    clear_drafts(folder.parent, folders=True)
    part = draft_of(folder)
    shutil.rmtree(part, ignore_errors=True)  # of a process that had the same number
    part.mkdir(parents=True)
    try:
        with locked(part, 0):
            yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def exchange(one: Path, other: Path) -> None:
    """Let two folders of one file system trade their names: in one step on Linux, by renaming elsewhere."""
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if (
        libc is not None
        and hasattr(libc, "renameat2")
        and not libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), flag)
    ):
        return
    aside = one.with_name(f"{one.name}-old")
    os.rename(other, aside)
    os.rename(one, other)
    os.rename(aside, one)


def clear_drafts(folder: Path, folders: bool = False) -> None:
    """Delete the drafts that killed processes have left in a folder: those of files, while the lock of the folder is
    held, or those of folders, each of which is locked as long as it is written."""
    for name in () if folders else BELOW:
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            clear_drafts(folder / name)
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if DRAFT.fullmatch(path.name) and not path.is_symlink()]:
            if folders and path.is_dir() and is_free(path):
                shutil.rmtree(path, ignore_errors=True)
            elif not folders and path.is_file():
                path.unlink(missing_ok=True)


def equal_modes(folder: Path) -> None:
    """Give the files that a library made for their owner alone (safetensors does) the mode that others get here."""
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_mode & 0o777 == 0o600 != mode:
            with suppress(OSError):  # a file system without modes
                file.chmod(mode)


def write_text(path: str | Path, text: str) -> Path:
    """As UTF-8. What that cannot hold, as in the name of a file that is no UTF-8, is written as an escape."""
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


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
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half characters, which only JSON's escapes can hold
        text = json.dumps(content, indent=2, allow_nan=False)
    return write_text(path, text + "\n")


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
