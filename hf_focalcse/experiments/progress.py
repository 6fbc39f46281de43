"""What a sweep tells whoever watches it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from .states import DAMAGED, FINISHED, INTERRUPTED, NEW, TRAINED


def summary(states: dict[str, str]) -> str:
    kinds = [NEW, INTERRUPTED, DAMAGED, TRAINED, FINISHED]
    counted = [f"{n} {kind}" for kind in kinds if (n := sum(state == kind for state in states.values()))]
    return f"{len(states)} run{'s' * (len(states) != 1)} ({', '.join(counted)})"


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


class Screen:
    """A terminal gets lines that stay and a table below them that is drawn anew; a file gets the lines."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.drawn = 0
        self.at = 0.0

    def event(self, text: str) -> None:
        with self._unheard():
            self.clear()
            print(f"{datetime.now():%H:%M:%S} {text}", flush=True)

    def draw(self, rows: Callable[[], list[str]]) -> None:
        if not self.live or (self.drawn and time.monotonic() - self.at < 1):
            return
        width, height = shutil.get_terminal_size()
        lines = [row[: width - 1] for row in rows()][: max(height - 2, 1)]
        with self._unheard():
            self.clear()
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()
            self.drawn, self.at = len(lines), time.monotonic()

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        """Where nobody reads any more the runs go on; their logs and the journal tell of them."""
        try:
            yield
        except OSError:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            self.live, self.drawn = False, 0

    def clear(self) -> None:
        if self.drawn:
            sys.stdout.write(f"\x1b[{self.drawn}F\x1b[J")
            sys.stdout.flush()
        self.drawn = 0
