"""SIGTERM and Ctrl-C during training: the step is finished, a checkpoint is saved, the run ends with exit code 75."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from transformers import TrainerCallback

from ..errors import Stopped
from ..objectives.pairs import on_any_rank, rank

STOPPING = (signal.SIGTERM, signal.SIGINT)
REPEATED = 2.0  # seconds; launchers pass a signal on to processes that the terminal has signalled already


class StopSignals(TrainerCallback):
    """A context in which the first signal asks for a checkpoint and an end, on all ranks at the same step.

    A second one, more than two seconds later, ends the process at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._stopping = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._receive) for number in STOPPING}
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self.received is not None and kind is None:  # it came after the last step
            signal.raise_signal(self.received)

    def _receive(self, number: int, _frame: Any) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            if rank() == 0:
                name = signal.Signals(number).name
                os.write(2, f"{name}: saving a checkpoint after this step; a second one stops at once\n".encode())
        elif now - self._since > REPEATED:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if on_any_rank(self.received is not None, args.device):
            self._stopping = control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._stopping:
            name = signal.Signals(self.received).name if self.received is not None else "a signal to another process"
            raise Stopped(
                f"stopped by {name} after step {state.global_step}, which is saved in {args.output_dir}"
                f"/checkpoint-{state.global_step}; go on with the same command and --resume_from_checkpoint last"
                if rank() == 0
                else ""
            )
