"""The exceptions that end a command, with what their messages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that a user can make: one clear sentence with the value, what is allowed and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{6,}")
LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")  # a name and a password in an address
NEAR = 0.8  # of difflib's ratio; at its default, 0.6, --lr would be near --pooler
SLIP = 4  # letters of a name from which one wrong letter, or two that are swapped, are near, whatever the ratio


def suggest(name: str, allowed: Iterable[str]) -> str:
    """``", did you mean 'x'?"`` for the nearest of ``allowed``, or the empty string where none is near.

    Dashes, underscores and case do not count.
    """
    known = {_plain(one): one for one in reversed(list(allowed))}  # of two spellings, the one that comes first
    given = _plain(name)
    near = get_close_matches(given, known, n=1, cutoff=NEAR) or [one for one in known if _is_slip(given, one)]
    return f", did you mean {known[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").casefold()


def _is_slip(one: str, other: str) -> bool:
    """Whether two names of one length differ in one letter, or in two that are swapped."""
    if len(one) != len(other) or len(one) < SLIP:
        return False
    apart = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    return len(apart) == 1 or (len(apart) == 2 and sorted(one) == sorted(other))


def printable(text: str) -> str:
    """Control characters, and others that a terminal would act on or not show, as escapes such as ``\\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def masked(text: str) -> str:
    """Without tokens of the Hub, and without the names and passwords in addresses."""
    return TOKEN.sub("hf_…", LOGIN.sub("…", text))


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
