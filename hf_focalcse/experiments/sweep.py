"""``focalcse sweep``: every run of a grid in a process of its own, so that whatever is killed can be started again.

A run is locked by the sweep and by the process that trains it; both locks end with their holders, however they end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ..errors import Stopped, UserError
from ..evaluation import Results
from ..options.experiments import SweepOptions
from ..runs.record import RUN_FILE, RunRecord, write_json
from ..training.checkpoints import list_checkpoints, remove
from .asked import differing
from .grid import Grid, PlannedRun, read_grid
from .processes import dying_with, environments, kill_tree, last_error, launch_words, signals_to, take_lock, writers
from .progress import Screen, duration, summary
from .states import (
    ASKED,
    DAMAGED,
    FINISHED,
    INTERRUPTED,
    TRAINED,
    is_cut,
    judged_by,
    read_asked,
    state_of,
)

LOG = "sweep.log"  # in a run's folder: what training and evaluation said
JOURNAL = "sweep.jsonl"  # in the folder of the runs: a line per start and end
LOCKS = ".locks"
POLL = 0.2  # seconds
PATIENCE = 120.0  # seconds that a run may take to save a checkpoint before it is killed
HEADLINES = {
    *("STSBenchmark/dev/all/spearman", "STSBenchmark/test/all/spearman"),
    *(f"average/{sick}-sickr/all/spearman" for sick in ("mteb", "senteval")),
}


def sweep(args: SweepOptions) -> None:
    """Train and judge every run of the grid that is not finished.

    Raises:
        UserError: the grid or a folder is not as it must be; nothing was started.
        Stopped: a signal ended it; the same command goes on.
        SystemExit: 1 where runs failed.
    """
    grid = read_grid(args.grid, args.overrides)
    folder = Path(args.runs or f"runs/{grid.name}")
    runs = choose(grid, args.only)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--runs {folder} is no folder; give one for the runs of the grid")
    launcher = launch_words(args.launch, args.jobs)
    states = {run.name: state_of(run, folder / run.name, grid) for run in runs}
    if grid.note:
        print(f"note: {grid.note}")
    if args.dry_run:
        width = max(len(run.name) for run in runs)
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
    """The runs of the grid whose names match.

    Raises:
        UserError: a pattern matches none.
    """
    for pattern in only or ():
        if not any(fnmatch(run.name, pattern) for run in grid.runs):
            names = ", ".join(run.name for run in grid.runs)
            raise UserError(f"--only {pattern}: no run of grid {grid.name} is called so; there are {names}")
    return [run for run in grid.runs if only is None or any(fnmatch(run.name, pattern) for pattern in only)]


@dataclass
class Job:
    """A run that is being worked on. what: train or eval; lock: the file that is locked as long as it is open."""

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
        self.screen = Screen()
        self.said = ""

    def go(self) -> None:
        """Until every run is finished or has failed."""
        with signals_to(lambda number, _: self.signals.append(number)):
            while (self.pending or self.running) and not self.signals:
                for job in [job for job in self.running if job.process.poll() is not None]:
                    try:
                        self.end(job)
                    except (UserError, OSError) as error:  # somebody changed what lies in its folder
                        self.fail(job.run, job.lock, str(error))
                self.start_more()
                self.screen.draw(self.table)
                if self.pending or self.running:
                    time.sleep(POLL)
            if self.signals:
                self.stop()
        self.screen.clear()
        self.report()

    # one run

    def start_more(self) -> None:
        """Fill the free slots with runs that nobody else is working on."""
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
            text = f"waiting: {name} is being worked on by {by}; {len(busy)} runs are left"
            if text != self.said:
                self.screen.event(text)
                self.said = text

    def start(self, run: PlannedRun, slot: int, lock: int) -> None:
        """Begin with what the run's folder lacks; ``lock`` is held."""
        folder = self.folder / run.name
        state = state_of(run, folder, self.grid)  # another sweep may have been here
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
            again = ["--overwrite_output_dir"]  # of a run that was killed between its last step and its record
        flags = [*run.argv, "--output_dir", str(folder), *again]
        command = ["focalcse", "train", *run.argv]
        if edited := differing(run.asked, command):
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
                pass_fds=(lock,),  # while the run lives its folder stays locked, also without this sweep
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which tells its runs
                preexec_fn=dying_with(os.getpid()),
            )
        self.running.append(Job(run, slot, lock, what, process))
        self.note("start", run.name, what, pid=process.pid, state=state)
        verb = {"train": "training", "eval": "judging"}[what]
        why = {INTERRUPTED: ", from its last checkpoint", DAMAGED: f", from the beginning: {reason}"}
        self.screen.event(f"{verb} {run.name}{why.get(state, '')}")

    def end(self, job: Job) -> None:
        """A process ended: on to the evaluation, to the list of the finished, or of the failed."""
        self.running.remove(job)
        code, folder = job.process.returncode, self.folder / job.run.name
        if job.what == "eval" and code == 0:
            self.keep_judged(folder)
        state = state_of(job.run, folder, self.grid)
        done = code == 0 and (state == FINISHED or (state == TRAINED and job.what == "train"))
        self.note("end" if done else "fail", job.run.name, job.what, code=code, seconds=round(job.seconds, 1))
        if not done:
            self.fail(job.run, job.lock, last_error(folder / LOG, code))
            return
        self.took[job.what].append(job.seconds)
        for checkpoint in list_checkpoints(folder) if job.what == "train" else ():
            remove(checkpoint)  # the model is saved; what is left would be several times its size
        self.start(job.run, job.slot, job.lock)

    def keep_judged(self, folder: Path) -> None:
        """Note by which flags these weights were judged, so that they are not judged again."""
        record = RunRecord.load(folder)
        asked = {"grid": self.grid.name, "command": record.command} | read_asked(folder)
        judged = judged_by(folder, self.grid.evaluate or ())
        write_json(folder / ASKED, asked | {"judged": judged})

    def fail(self, run: PlannedRun, lock: int | None, reason: str) -> None:
        """The others go on."""
        if lock is not None:
            os.close(lock)
        self.failed[run.name] = reason
        self.screen.event(f"FAILED {run.name}: {reason}")

    def close(self, run: PlannedRun, lock: int) -> None:
        """The run is finished; ``lock`` is still held where what it left cannot be read."""
        file = self.folder / run.name / "results.json"
        scores = Results.read(file).scores if file.exists() else {}
        os.close(lock)
        self.finished.append(run.name)
        shown = [f"{key.removesuffix('/all/spearman')} {scores[key]:.2f}" for key in scores if key in HEADLINES]
        left = self.remaining()
        self.screen.event(
            f"finished {run.name}{': ' + ', '.join(shown) if shown else ''} ({len(self.finished)} of {self.total}"
            f"{', about ' + left + ' left' if left else ''})"
        )

    def stop(self) -> None:
        """Tell the running to save and end; a second signal, or too long a wait, kills them."""
        name = signal.Signals(self.signals[0]).name
        self.screen.event(f"{name}: {len(self.running)} runs are saving a checkpoint; a second one kills them")
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
        self.screen.clear()
        raise Stopped(
            f"stopped by {name}: {len(self.finished)} of {self.total} runs are finished; the same command goes on"
        )

    # what is said

    def note(self, event: str, run: str, what: str, **more: Any) -> None:
        """A line of the journal, in one write so that two sweeps do not mix theirs.

        Where it cannot be written that is said: a run that goes on must not count as failed for it.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = json.dumps({"time": now, "event": event, "run": run, "what": what, **more}) + "\n"
        try:
            with open(self.folder / JOURNAL, "ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            self.screen.event(f"{JOURNAL} lacks the {event} of {run}: {error}")

    def remaining(self) -> str:
        """The time that is left, from what the runs of this sweep took; empty as long as none is finished."""
        means = {what: sum(took) / len(took) for what, took in self.took.items() if took}
        if not means or not (self.pending or self.running):
            return ""
        whole = sum(means.values())
        left = len(self.pending) * whole + sum(
            max(means.get(job.what, 0) - job.seconds, 0) + (means.get("eval", 0) if job.what == "train" else 0)
            for job in self.running
        )
        return duration(left / self.jobs)

    def table(self) -> list[str]:
        """What a terminal shows, drawn anew all the time."""
        means = {what: sum(took) / len(took) for what, took in self.took.items() if took}
        left = self.remaining()
        head = f"{len(self.finished)} of {self.total} finished, {len(self.failed)} failed, {len(self.pending)} waiting"
        rows = [head + (f", about {left} left" if left else "")]
        for job in self.running:
            usual = f" of about {duration(means[job.what])}" if job.what in means else ""
            rows.append(f"  {job.run.name:40} {job.what:5} {duration(job.seconds)}{usual}")
        return rows

    def report(self) -> None:
        """The end, with the failures."""
        print(f"{len(self.finished)} of {self.total} runs are finished in {self.folder}")
        if self.failed:
            print(f"{len(self.failed)} failed; the same command tries them again:", file=sys.stderr)
            for name, reason in self.failed.items():
                print(f"  {name}: {reason}\n    log: {self.folder / name / LOG}", file=sys.stderr)
            raise SystemExit(1)
