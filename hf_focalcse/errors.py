"""The exceptions that end a command, with what their messages are made of."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that a user can make: one clear sentence with the value, what is allowed and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def suggest(name: str, allowed: Iterable[str]) -> str:
    """``", did you mean 'x'?"`` for the nearest of ``allowed``, or the empty string where none is near."""
    near = get_close_matches(name, list(allowed), n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def on_one_line(error: Exception) -> str:
    """The message of another library's error as one clause of at most 300 characters."""
    return " ".join(str(error).split()).replace(". ", "; ").rstrip(".")[:300] or type(error).__name__


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line and without a full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class Stopped(Exception):
    """Training was stopped by a signal and has saved a checkpoint. The command line exits with `STOPPED`.

    The message is empty on all processes but the first.
    """


STOPPED = 75  # EX_TEMPFAIL of sysexits.h: not done, worth starting again
