"""What scoring the dev set costs of a training run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMIT = 0.05  # of the run


class DevCost:
    """Seconds of the scorings against those of the run, both from the end of the run's first step on.

    The first step is left out since it warms up, and the scoring before training since it happens once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self.last = 0.0  # seconds of the newest scoring, in the run or before it
        self.restart()

    def restart(self) -> None:
        """A run is about to begin."""
        self._began: float | None = None
        self._first = 0
        self._scored = 0.0

    def begin(self, step: int) -> None:
        """``step`` of the run has ended; only the first call counts."""
        if self._began is None:
            self._began, self._first = self._clock(), step

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Time one scoring of the dev set."""
        started = self._clock()
        yield
        self.last = self._clock() - started
        if self._began is not None:
            self._scored += self.last

    def of_step(self, step: int) -> float | None:
        """Mean seconds of a step, all that is no scoring included; None before the second step."""
        if self._began is None or step <= self._first:
            return None
        return (self._clock() - self._began - self._scored) / (step - self._first)

    def share(self, step: int) -> float | None:
        """Of the run so far; None before the second step."""
        if self._began is None or step <= self._first:
            return None
        return self._scored / (self._clock() - self._began)

    def expected(self, step: int, every: float) -> float | None:
        """Of a run that scores every so many steps, by the newest scoring; None before there are both."""
        seconds = self.of_step(step)
        return None if seconds is None or not self.last else self.last / (self.last + every * seconds)

    def enough(self, step: int) -> int | None:
        """Steps between two scorings with which they take at most ``LIMIT`` of the run."""
        seconds = self.of_step(step)
        return None if seconds is None else math.ceil(self.last * (1 - LIMIT) / LIMIT / seconds)
