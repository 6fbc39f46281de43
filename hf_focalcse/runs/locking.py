"""A folder is written by one process at a time: a lock on the folder itself, which ends with its holder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

PATIENCE = 10.0  # seconds; a process that was killed may leave workers, which hold its locks until they notice
POLL = 0.1
_held: dict[tuple[int, int], int] = {}  # device and number of a folder -> how often this process has locked it


@contextmanager
def locked(folder: str | Path, patience: float | None = None) -> Iterator[None]:
    """Hold the lock of a folder, which is made where it is missing. A process may lock a folder again that it holds.

    A lock on the folder needs no file in it. Where the file system has no locks, nothing is held.

    Args:
        patience: seconds to wait for another holder; `PATIENCE` where it is None.

    Raises:
        UserError: another process holds it, or the folder cannot be made.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _take(folder, PATIENCE if patience is None else patience)
    except OSError as error:
        raise UserError(f"nothing can be written into {folder} ({error.strerror}); give another folder") from error
    if lock is None:
        yield
        return
    key = _key(os.fstat(lock))
    _held[key] = _held.get(key, 0) + 1
    try:
        yield
    finally:
        _held[key] -= 1
        if not _held[key]:
            del _held[key]
        os.close(lock)


def is_free(folder: Path) -> bool:
    """Whether no process, this one included, holds the lock of a folder; False also where that cannot be told."""
    if fcntl is None:
        return False
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def _take(folder: Path, patience: float) -> int | None:
    """The descriptor that holds the lock, or one that does not where this process has it; None: there are no locks."""
    if fcntl is None:
        return None
    end = time.monotonic() + patience
    while True:
        lock = os.open(folder, os.O_RDONLY)
        if _key(os.fstat(lock)) in _held:
            return lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists() and _key(folder.stat()) == _key(os.fstat(lock)):
                return lock
            os.close(lock)  # another folder has taken its place meanwhile
            folder.mkdir(parents=True, exist_ok=True)
            continue
        except BlockingIOError:
            os.close(lock)
        except OSError:  # this file system has no locks
            os.close(lock)
            return None
        if time.monotonic() > end:
            raise UserError(
                f"another process is writing into {folder}; wait until it has ended, or give another folder"
            )
        time.sleep(POLL)


def _key(status: Any) -> tuple[int, int]:
    return status.st_dev, status.st_ino
