"""What a sweep prints while it runs: lines that stay and, on a terminal, a progress bar below them."""

from __future__ import annotations

import os
import sys
from datetime import datetime

from tqdm import tqdm


class Bar(tqdm):  # type: ignore[type-arg]
    """Without the thread that redraws a bar from time to time: a sweep forks, and redraws its bar itself."""

    monitor_interval = 0


class Progress:
    """Lines with the time of day on stdout, and a bar on stderr where that is a terminal.

    The runs continue when the terminal or the pipe is closed; their logs and the journal record what happens to them.
    """

    def __init__(self, total: int):
        self.bar = Bar(
            total=total,
            disable=None,
            leave=False,
            dynamic_ncols=True,
            bar_format="{n_fmt}/{total_fmt} |{bar:10}| {desc}",
        )

    def line(self, text: str) -> None:
        try:
            self.bar.write(f"{datetime.now():%H:%M:%S} {text}", file=sys.stdout)
            sys.stdout.flush()
        except OSError:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def show(self, done: int, text: str) -> None:
        """Redraw the bar at ``done`` runs with ``text`` behind it, if one of them has changed."""
        if self.bar.disable or (self.bar.n, self.bar.desc) == (done, text):
            return
        self.bar.n = done
        self.bar.set_description_str(text)

    def close(self) -> None:
        self.bar.close()


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
