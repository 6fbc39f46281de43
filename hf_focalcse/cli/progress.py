"""What training shows while it runs: a bar on a terminal, short lines, and a log file with everything."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from ..data.terminal import shown
from ..runs.atomic import without_nan, write_text
from ..runs.scores import ScoreKey, headlines, set_of

LOG_FILE = "log.jsonl"  # in the output folder: a line for each log of Trainer
COLUMNS = 80
EVERY = 10.0  # seconds between two lines on the loss where there is no terminal; scores are always told
SILENCE = 60.0  # seconds after which a line is printed though nothing was logged


class Progress(TrainerCallback):
    """Takes the place of Trainer's own bar and of its printed dictionaries.

    On a terminal there is a bar, and a line at each log. Elsewhere, as in a file or a scheduler's log, there are only
    lines, a few of them, and no carriage return.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self.file = folder / LOG_FILE
        self.clock = clock
        self.bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first, self.began, self.told = state.global_step, self.clock(), -math.inf
        if not state.is_world_process_zero:
            return
        self.file_begun = False
        disable = True if args.disable_tqdm else None  # None: where stderr is no terminal
        self.bar = tqdm(total=state.max_steps, initial=self.first, disable=disable, dynamic_ncols=True, leave=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.bar.update(state.global_step - self.bar.n)
        if self.bar.disable and self.clock() - self.told >= SILENCE and self.told > -math.inf:
            self._say(state, [])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or logs is None or self.bar is None:
            return
        logged = {key: value for key, value in logs.items() if key != "total_flos"}
        row = {"step": state.global_step} | without_nan(logged)
        if not self.file_begun:  # not earlier: a run that fails in its first step leaves the file of the one before
            self._keep_until(self.first)
            self.file_begun = True
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        scores = told_scores(logs)
        often = self.bar.disable and self.clock() - self.told < EVERY and state.global_step < state.max_steps
        if scores or ("loss" in logs and not often):
            self._say(state, scores or told_loss(logs))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self.bar.close()

    def _say(self, state: Any, parts: list[str]) -> None:
        self.told = now = self.clock()
        done, total = state.global_step, state.max_steps
        begin = f"step {done:>{len(str(total))}}/{total}"
        end = []
        if done > self.first:
            seconds = (now - self.began) / (done - self.first) * (total - done)
            end = [f"{duration(seconds)} left"] if done < total else [duration(now - self.began)]
        for line in folded([begin, *parts, *end]):
            self.bar.write(line)
        sys.stdout.flush()

    def _keep_until(self, step: int) -> None:
        """Begin the log file, or leave in it what the checkpoint knows of that the run goes on from."""
        kept = []
        if step and self.file.exists():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:  # cut by a power failure
                    continue
                kept += [line] if row.get("step", 0) <= step else []
        write_text(self.file, "".join(f"{line}\n" for line in kept))


def show_progress(trainer: Any, folder: Path) -> None:
    """Let ``trainer`` show its progress by `Progress`."""
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(Progress(folder))


def told_loss(logs: dict[str, Any]) -> list[str]:
    loss = logs["loss"]
    told = [f"loss {loss:.4f}" if not 0 < abs(loss) < 1e-3 else f"loss {loss:.1e}"]
    if "learning_rate" in logs:
        told.append(f"lr {logs['learning_rate']:.1e}")
    return told


def told_scores(logs: dict[str, Any]) -> list[str]:
    """The main score of each dev set with its gain, as ``STSBenchmark/dev 80.12 (+1.30)``."""
    scores = {key.removeprefix("eval_"): value for key, value in logs.items() if key.startswith("eval_")}
    told = []
    for key, value in headlines(scores).items():
        gain = scores.get(ScoreKey.parse(key).gain)
        told.append(f"{set_of(key)} {value:.2f}" + ("" if gain is None else f" ({gain:+.2f})"))
    return told


def folded(parts: list[str]) -> list[str]:
    """The parts of a line as lines of at most 80 columns; further ones begin under the second part."""
    lines, indent = parts[:1], " " * len(parts[0])
    for part in parts[1:]:
        longer = f"{lines[-1]}  {part}"
        if len(longer) <= COLUMNS or lines == parts[:1]:
            lines[-1] = shown(longer, COLUMNS)
        else:
            lines.append(shown(f"{indent}  {part}", COLUMNS))
    return lines


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
