"""``focalcse sweep``: every run of a grid in a process of its own, so that a sweep that was killed can be continued.

A run is locked by the sweep and by the process that trains it. Both locks end with their holders, however these end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ..errors import Stopped, UserError
from ..evaluation.verdict import aside
from ..options.experiments import SweepOptions
from ..runs.atomic import write_json
from ..runs.folder import read_results
from ..runs.record import RUN_FILE, RunRecord
from ..runs.scores import SICK_SPLITS, headline, is_headline, set_of
from ..training.checkpoints import list_checkpoints, remove
from .asked import differences_from_command
from .grid import Grid, PlannedRun, read_grid
from .processes import dying_with, environments, kill_tree, last_error, launch_words, signals_to, take_lock, writers
from .progress import Progress, duration
from .states import (
    ASKED,
    DAMAGED,
    FINISHED,
    INTERRUPTED,
    TRAINED,
    evaluation_of,
    is_cut,
    read_asked,
    state_of,
    summary,
)

LOG = "sweep.log"  # in a run's folder: the output of training and evaluation
JOURNAL = "sweep.jsonl"  # in the folder of the runs: a line for each start and end
LOCKS = ".locks"
POLL = 0.2  # seconds
PATIENCE = 120.0  # seconds that a run may take to save a checkpoint before it is killed
PRINTED = {  # the scores that are printed when a run is finished
    headline(key)
    for key in ("STSBenchmark/dev", "STSBenchmark/test", *(sick.average for sick in SICK_SPLITS.values()))
}


def sweep(args: SweepOptions) -> None:
    """Train and evaluate every run of the grid that is not finished.

    Raises:
        UserError: the grid or a folder is not valid; nothing was started.
        Stopped: a signal ended the sweep; the same command continues it.
        SystemExit: with code 1 if runs failed.
    """
    grid = read_grid(args.grid, args.overrides)
    run_grid(grid, Path(args.runs or f"runs/{grid.name}"), args)


def run_grid(grid: Grid, folder: Path, args: SweepOptions) -> None:
    """Train and evaluate in ``folder``; raises as `sweep` does."""
    grid = replace(grid, runs=tuple(run.in_folder(folder) for run in grid.runs))
    runs = choose(grid, args.only)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--runs {folder} is not a folder; give one for the runs of the grid")
    launcher = launch_words(args.launch, args.jobs)
    states = {run.name: state_of(run, folder / run.name, grid) for run in runs}
    if grid.note:
        print(f"note: {grid.note}")
    if args.dry_run:
        width = max((len(run.name) for run in runs), default=0)
        for run in runs:
            print(f"{run.name:{width}}  {states[run.name]:13}  {shlex.join(run.argv)}")
        print(f"\n{summary(states)} in {folder}; nothing was started")
        return
    try:
        (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"nothing can be written into {folder} ({error.strerror}); give another --runs") from error
    print(f"{summary(states)} in {folder}, {args.jobs} at a time", flush=True)
    Sweep(grid, folder, runs, launcher, args.jobs).go()


def choose(grid: Grid, only: list[str] | None) -> list[PlannedRun]:
    """The runs of the grid whose names match one of the patterns ``only``.

    Raises:
        UserError: a pattern matches no run.
    """
    for pattern in only or ():
        if not any(fnmatch(run.name, pattern) for run in grid.runs):
            names = ", ".join(run.name for run in grid.runs)
            raise UserError(f"--only {pattern}: grid {grid.name} has no run of that name; there are {names}")
    return [run for run in grid.runs if only is None or any(fnmatch(run.name, pattern) for pattern in only)]


@dataclass
class Job:
    """A run that is being worked on. what: train or eval; lock: the descriptor of the lock file, open while locked."""

    run: PlannedRun
    slot: int
    lock: int
    what: str
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class Sweep:
    """The runs of a grid, ``jobs`` at a time."""

    def __init__(self, grid: Grid, folder: Path, runs: list[PlannedRun], launcher: list[str], jobs: int):
        self.grid, self.folder, self.launcher, self.jobs = grid, folder, launcher, jobs
        self.pending = list(runs)
        self.total = len(runs)
        self.running: list[Job] = []
        self.finished: list[str] = []
        self.failed: dict[str, str] = {}
        self.took: dict[str, list[float]] = {"train": [], "eval": []}
        self.signals: list[int] = []
        self.environments = environments(jobs, bool(len(launcher) > 1))
        self.progress = Progress(self.total)
        self.waiting_for = ""

    def go(self) -> None:
        """Work until every run is finished or has failed, or until a signal arrives."""
        with signals_to(lambda number, _: self.signals.append(number)):
            while (self.pending or self.running) and not self.signals:
                for job in [job for job in self.running if job.process.poll() is not None]:
                    try:
                        self.end(job)
                    except (UserError, OSError) as error:  # the content of its folder was changed from outside
                        self.fail(job.run, job.lock, str(error))
                self.start_more()
                self.progress.show(len(self.finished), self.status())
                if self.pending or self.running:
                    time.sleep(POLL)
            if self.signals:
                self.stop()
        self.progress.close()
        self.report()

    # ---- one run

    def start_more(self) -> None:
        """Fill the free slots with runs that no other process works on."""
        free = [slot for slot in range(self.jobs) if slot not in {job.slot for job in self.running}]
        if not free or not self.pending:
            return
        busy, writing = {}, writers()
        for run in list(self.pending):
            if not free:
                return
            folder = self.folder / run.name
            try:
                lock = take_lock(self.folder / LOCKS / f"{run.name}.lock")
            except OSError as error:
                self.pending.remove(run)
                self.fail(run, None, f"its folder cannot be locked ({error})")
                continue
            pid = writing.get(folder.resolve())
            if lock is None or pid is not None:
                busy[run.name] = f"process {pid}" if pid is not None else "another sweep"
                if lock is not None:
                    os.close(lock)
                continue
            self.pending.remove(run)
            try:
                self.start(run, free[0], lock)
            except (UserError, OSError) as error:
                self.fail(run, lock, str(error))
            if any(job.slot == free[0] for job in self.running):
                free.pop(0)
        if busy and not self.running:
            name, by = next(iter(busy.items()))
            text = f"waiting: {by} is working on {name}; {len(busy)} runs are left"
            if text != self.waiting_for:
                self.progress.line(text)
                self.waiting_for = text

    def start(self, run: PlannedRun, slot: int, lock: int) -> None:
        """Begin with what the run still lacks; ``lock`` is held."""
        folder = self.folder / run.name
        state = state_of(run, folder, self.grid)  # another sweep may have worked on it since
        if state == FINISHED:
            self.close(run, lock)
            return
        if state == TRAINED:
            self.launch(
                run, slot, lock, "eval", [sys.executable, "-m", "hf_focalcse", "eval", *self.eval_flags(folder)]
            )
            return
        folder.mkdir(exist_ok=True)
        again: list[str] = []
        if state == INTERRUPTED:
            again = ["--resume_from_checkpoint", "last"]
        elif {path.name for path in folder.iterdir()} - {ASKED, LOG}:
            again = ["--overwrite_output_dir"]  # the run was killed between its last step and its record
        flags = [*run.argv, "--output_dir", str(folder), *again]
        command = ["focalcse", "train", *run.argv]
        if edited := differences_from_command(run.asked, command):
            raise UserError(f"its recipe was edited while the sweep was running: {edited[0]}; start the sweep again")
        write_json(folder / ASKED, {"grid": self.grid.name, "command": command, "asked": run.asked})
        reason = f"its {RUN_FILE} is damaged" if is_cut(folder / RUN_FILE) else "no checkpoint can be used"
        self.launch(run, slot, lock, "train", [*self.launcher, "-m", "hf_focalcse", "train", *flags], state, reason)

    def eval_flags(self, folder: Path) -> list[str]:
        return ["--model_name_or_path", str(folder), "--output_dir", str(folder), *(self.grid.evaluate or ())]

    def launch(
        self, run: PlannedRun, slot: int, lock: int, what: str, command: list[str], state: str = "", reason: str = ""
    ) -> None:
        log = self.folder / run.name / LOG
        with open(log, "ab") as stream:
            stream.write(f"\n$ {shlex.join(command)}\n".encode())
            stream.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environments[slot],
                pass_fds=(lock,),  # the folder stays locked while the run lives, even if this sweep has ended
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which then stops its runs
                preexec_fn=dying_with(os.getpid()),
            )
        self.running.append(Job(run, slot, lock, what, process))
        self.note("start", run.name, what, pid=process.pid, state=state)
        verb = {"train": "training", "eval": "evaluating"}[what]
        why = {INTERRUPTED: ", from its last checkpoint", DAMAGED: f", from the beginning: {reason}"}
        self.progress.line(f"{verb} {run.name}{why.get(state, '')}")

    def end(self, job: Job) -> None:
        """A process has ended: continue with the evaluation, or count the run as finished or failed."""
        self.running.remove(job)
        code, folder = job.process.returncode, self.folder / job.run.name
        if job.what == "eval" and code == 0:
            self.keep_evaluation(folder)
        state = state_of(job.run, folder, self.grid)
        done = code == 0 and (state == FINISHED or (state == TRAINED and job.what == "train"))
        self.note("end" if done else "fail", job.run.name, job.what, code=code, seconds=round(job.seconds, 1))
        if not done:
            self.fail(job.run, job.lock, last_error(folder / LOG, code))
            return
        self.took[job.what].append(job.seconds)
        for checkpoint in list_checkpoints(folder) if job.what == "train" else ():
            remove(checkpoint)  # the model is saved; the checkpoints would take several times its space
        self.start(job.run, job.slot, job.lock)

    def keep_evaluation(self, folder: Path) -> None:
        """Write down which flags these weights were evaluated with, so that they are not evaluated again."""
        record = RunRecord.load(folder)
        asked = {"grid": self.grid.name, "command": record.command} | read_asked(folder)
        write_json(folder / ASKED, asked | {"judged": evaluation_of(folder, self.grid.evaluate or ())})

    def fail(self, run: PlannedRun, lock: int | None, reason: str) -> None:
        """Count a run as failed; the others continue."""
        if lock is not None:
            os.close(lock)
        self.failed[run.name] = reason
        self.progress.line(f"FAILED {run.name}: {reason}")

    def close(self, run: PlannedRun, lock: int) -> None:
        """Count a run as finished. ``lock`` is still held if its scores cannot be read."""
        results = read_results(self.folder / run.name)
        scores = results.scores if results else {}
        os.close(lock)
        self.finished.append(run.name)
        record = RunRecord.load(self.folder / run.name)
        shown = [
            f"{set_of(key)} {score:.2f}{aside(record, key)}"
            for key, score in scores.items()
            if key in PRINTED or (key in record.baseline and is_headline(key))
        ]
        left = self.remaining()
        self.progress.line(
            f"finished {run.name}{': ' + ', '.join(shown) if shown else ''} ({len(self.finished)} of {self.total}"
            f"{', about ' + left + ' left' if left else ''})"
        )

    def stop(self) -> None:
        """Tell the running processes to save a checkpoint and end; kill them after a second signal or a long wait."""
        name = signal.Signals(self.signals[0]).name
        self.progress.line(f"{name}: {len(self.running)} runs are saving a checkpoint; a second signal kills them")
        for job in self.running:
            job.process.terminate()
        deadline = time.monotonic() + PATIENCE
        while any(job.process.poll() is None for job in self.running):
            if len(self.signals) > 1 or time.monotonic() > deadline:
                for job in self.running:
                    kill_tree(job.process.pid)
            time.sleep(POLL)
        for job in self.running:
            done = job.process.returncode == 0
            self.note("end" if done else "stop", job.run.name, job.what, code=job.process.returncode)
        self.progress.close()
        raise Stopped(
            f"stopped by {name}: {len(self.finished)} of {self.total} runs are finished; the same command continues"
        )

    # ---- what is written down and printed

    def note(self, event: str, run: str, what: str, **more: Any) -> None:
        """Add a line to the journal, in one write so that the lines of two sweeps do not mix.

        If it cannot be written, a message says so: this must not make a run fail that is going well.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "event": event, "run": run, "what": what, **more}) + "\n"
        try:
            with open(self.folder / JOURNAL, "ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            self.progress.line(f"{JOURNAL} lacks the {event} of {run}: {error}")

    def remaining(self) -> str:
        """The time that is left, judged by the runs of this sweep so far; empty until one is finished."""
        means = self.means()
        if not means or not (self.pending or self.running):
            return ""
        whole = sum(means.values())
        left = len(self.pending) * whole + sum(
            max(means.get(job.what, 0) - job.seconds, 0) + (means.get("eval", 0) if job.what == "train" else 0)
            for job in self.running
        )
        return duration(left / self.jobs)

    def means(self) -> dict[str, float]:
        """The mean seconds of a training and of an evaluation, as far as there has been one."""
        return {what: sum(took) / len(took) for what, took in self.took.items() if took}

    def status(self) -> str:
        """The line behind the progress bar: what failed and waits, the time that is left, and what is running."""
        means, left = self.means(), self.remaining()
        parts = [f"{len(self.failed)} failed, {len(self.pending)} waiting" + (f", about {left} left" if left else "")]
        for job in self.running:
            usual = f" of about {duration(means[job.what])}" if job.what in means else ""
            parts.append(f"{job.what} {job.run.name} {duration(job.seconds)}{usual}")
        return "; ".join(parts)

    def report(self) -> None:
        """Print how many runs are finished, and why the others failed.

        Raises:
            SystemExit: with code 1 if runs failed.
        """
        print(f"{len(self.finished)} of {self.total} runs are finished in {self.folder}")
        if self.failed:
            print(f"{len(self.failed)} failed; the same command tries them again:", file=sys.stderr)
            for name, reason in self.failed.items():
                print(f"  {name}: {reason}\n    log: {self.folder / name / LOG}", file=sys.stderr)
            raise SystemExit(1)
