"""``focalcse sweep``: every run of a grid in a process of its own, so that whatever is killed can be started again.

A run is locked by the sweep and by the process that trains it; both locks end with their holders, however they end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

from ..errors import STOPPED, Stopped, UserError
from ..evaluation import Results
from ..parsing.arguments import SweepArguments, parse_eval
from ..runs.record import RUN_FILE, RunRecord, write_json
from ..training.checkpoints import find_checkpoint, list_checkpoints, remove
from .grid import Grid, Run, differing, read_grid, same_command

ASKED = "sweep.json"  # in a run's folder: the flags it was started with, and those it was judged by
LOG = "sweep.log"  # in a run's folder: what training and evaluation said
JOURNAL = "sweep.jsonl"  # in the folder of the runs: a line per start and end
LOCKS = ".locks"
POLL = 0.2  # seconds
PATIENCE = 120.0  # seconds that a run may take to save a checkpoint before it is killed
NEW, INTERRUPTED, DAMAGED, TRAINED, FINISHED = "new", "interrupted", "not resumable", "trained", "finished"
PR_SET_PDEATHSIG = 1


def sweep(args: SweepArguments) -> None:
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


def choose(grid: Grid, only: list[str] | None) -> list[Run]:
    """The runs of the grid whose names match.

    Raises:
        UserError: a pattern matches none.
    """
    for pattern in only or ():
        if not any(fnmatch(run.name, pattern) for run in grid.runs):
            names = ", ".join(run.name for run in grid.runs)
            raise UserError(f"--only {pattern}: no run of grid {grid.name} is called so; there are {names}")
    return [run for run in grid.runs if only is None or any(fnmatch(run.name, pattern) for pattern in only)]


def launch_words(launch: str, jobs: int) -> list[str]:
    """The command line before ``-m hf_focalcse``: this Python, or the launcher asked for.

    Raises:
        UserError: the launcher is not there, or its quotes do not match.
    """
    try:
        words = shlex.split(launch)
    except ValueError as error:
        raise UserError(f"--launch {launch!r} is no command line ({error}); close its quotes") from error
    if not words:
        return [sys.executable]
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which(words[0], path=beside)
    if program is None:
        raise UserError(f"--launch: there is no program {words[0]!r}; give 'accelerate launch …' or 'torchrun …'")
    ports = ("--main_process_port", "--standalone", "--rdzv", "--master")
    if jobs > 1 and not any(word.replace("-", "_").startswith(p.replace("-", "_")) for word in words for p in ports):
        # Any free port: several launchers would meet at the default one.
        if Path(program).name == "accelerate":
            words[2:2] = ["--main_process_port", "0"]
        elif Path(program).name == "torchrun":
            words[1:1] = ["--standalone"]
    return [program, *words[1:]]


def summary(states: dict[str, str]) -> str:
    kinds = [NEW, INTERRUPTED, DAMAGED, TRAINED, FINISHED]
    counted = [f"{n} {kind}" for kind in kinds if (n := sum(state == kind for state in states.values()))]
    return f"{len(states)} run{'s' * (len(states) != 1)} ({', '.join(counted)})"


# ---- what is there


def state_of(run: Run, folder: Path, grid: Grid) -> str:
    """How far the run in ``folder`` is.

    Raises:
        UserError: the folder holds a run with other settings.
    """
    asked = folder / ASKED
    cut = is_cut(folder / RUN_FILE)
    if (folder / RUN_FILE).exists() and not cut:
        record = RunRecord.load(folder)
        _refuse_other(run, record.command, folder)
        if record.seconds is not None:
            return FINISHED if grid.evaluate is None or is_judged(folder, record, grid.evaluate) else TRAINED
    elif asked.exists():
        try:
            command = json.loads(asked.read_text(encoding="utf-8"))["command"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{asked} cannot be read ({error}); delete {folder} to start the run again") from error
        _refuse_other(run, command, folder)
    if cut:
        return DAMAGED
    if not list_checkpoints(folder):
        return NEW
    try:
        return INTERRUPTED if find_checkpoint(folder, "last") else NEW
    except UserError:
        return DAMAGED  # it is started again from the beginning


def is_cut(file: Path) -> bool:
    """Whether a record is there but no JSON, as a full disk or a power cut leaves it; one of another version is."""
    try:
        return file.exists() and not isinstance(json.loads(file.read_bytes()), dict)
    except ValueError:
        return True


def _refuse_other(run: Run, command: list[str], folder: Path) -> None:
    asked = read_asked(folder)
    try:
        by_sweep = "asked" in asked and same_command(command, asked["command"])
        found = differing(run, command, asked["asked"] if by_sweep else None)
    except (UserError, SystemExit) as error:
        raise UserError(
            f"{folder} holds a run whose settings cannot be compared: {error}; give another --runs"
        ) from error
    if found:
        more = f" (and {len(found) - 1} more: {', '.join(text.split()[0] for text in found[1:])})" if found[1:] else ""
        raise UserError(
            f"{folder} holds a run with other settings than the grid's: {found[0]}{more}; "
            "give another --runs, or delete it"
        )


def read_asked(folder: Path) -> dict[str, Any]:
    """What sweep.json of a run says; empty where it says nothing."""
    try:
        asked = json.loads((folder / ASKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return asked if isinstance(asked, dict) else {}


def is_judged(folder: Path, record: RunRecord, evaluate: tuple[str, ...]) -> bool:
    """Whether a sweep has judged these weights by these flags, and results.json still holds every set.

    The names of the sets alone are no proof: two files of pairs may be called the same.
    """
    judged = read_asked(folder).get("judged")
    try:
        found = judged_by(folder, evaluate)
    except UserError:  # no results.json, or a damaged one
        return False
    return (
        isinstance(judged, dict)
        and found["weights_sha256"] == record.model.get("weights_sha256")
        and all(judged.get(key) == found[key] for key in ("by", "weights_sha256"))
        and set(judged.get("sets", ())) <= set(found["sets"])
    )


def judged_by(folder: Path, evaluate: tuple[str, ...]) -> dict[str, Any]:
    """The flags of an evaluation that change its scores, and whose weights and which sets results.json holds."""
    by = {key: value for key, value in asdict(parse_eval(list(evaluate))).items() if value not in (None, False)}
    for flag in ("device", "batch_size"):
        by.pop(flag, None)
    for flag in ("eval_file", "sts_dir"):
        if flag in by and Path(by[flag]).exists():
            by[flag] = str(Path(by[flag]).resolve())
    metadata = Results.read(folder / "results.json").metadata
    return {"by": by, "weights_sha256": metadata["model"].get("weights_sha256"), "sets": sorted(metadata["data"])}


def writers() -> dict[Path, int]:
    """{folder: a process that writes into it}, by the ``--output_dir`` of every process that can be looked at.

    The workers of a launcher hold no lock, and a run may have been started by hand.
    """
    found: dict[Path, int] = {}
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        for word, following in zip(words, [*words[1:], ""], strict=False):  # kernel threads have no words
            flag, equals, value = word.partition("=")
            if flag == "--output_dir":
                try:
                    found[(Path(process.cwd()) / (value if equals else following)).resolve()] = process.pid
                except (psutil.Error, OSError):  # it ended, or is somebody else's
                    continue
    return found


@contextmanager
def _signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Those that were to be ignored, as nohup asks for SIGHUP, are ignored on."""
    wanted = [n for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# ---- the sweep


@dataclass
class Job:
    """A run that is being worked on. what: train or eval; lock: the file that is locked as long as it is open."""

    run: Run
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

    def __init__(self, grid: Grid, folder: Path, runs: list[Run], launcher: list[str], jobs: int):
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
        with _signals(lambda number, _: self.signals.append(number)):
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

    def start(self, run: Run, slot: int, lock: int) -> None:
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
        if edited := differing(run, command):
            raise UserError(f"its recipe was edited while the sweep was running: {edited[0]}; start the sweep again")
        write_json(folder / ASKED, {"grid": self.grid.name, "command": command, "asked": run.asked})
        reason = f"its {RUN_FILE} is damaged" if is_cut(folder / RUN_FILE) else "no checkpoint can be used"
        self.launch(run, slot, lock, "train", [*self.launcher, "-m", "hf_focalcse", "train", *flags], state, reason)

    def eval_flags(self, folder: Path) -> list[str]:
        return ["--model_name_or_path", str(folder), "--output_dir", str(folder), *(self.grid.evaluate or ())]

    def launch(
        self, run: Run, slot: int, lock: int, what: str, command: list[str], state: str = "", reason: str = ""
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

    def fail(self, run: Run, lock: int | None, reason: str) -> None:
        """The others go on."""
        if lock is not None:
            os.close(lock)
        self.failed[run.name] = reason
        self.screen.event(f"FAILED {run.name}: {reason}")

    def close(self, run: Run, lock: int) -> None:
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


HEADLINES = {
    *("STSBenchmark/dev/all/spearman", "STSBenchmark/test/all/spearman"),
    *(f"average/{sick}-sickr/all/spearman" for sick in ("mteb", "senteval")),
}


def environments(jobs: int, launched: bool) -> list[dict[str, str]]:
    """What each slot is given: its part of the CPU threads, and of the GPUs that can be seen.

    Without a launcher a run gets one GPU, for on several Trainer would use DataParallel and another batch size.
    """
    import torch  # parsing the grid has loaded it

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = int(os.environ.get("OMP_NUM_THREADS") or cores)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = (
        [g for g in visible.split(",") if g]
        if visible is not None
        else [str(i) for i in range(torch.cuda.device_count())]
    )
    each = max(len(gpus) // jobs, 1) if launched else 1
    made = []
    for slot in range(jobs):
        environment = {"OMP_NUM_THREADS": str(max(threads // jobs, 1)), "TOKENIZERS_PARALLELISM": "false"}
        if gpus and (jobs > 1 or not launched):
            start = slot * each % len(gpus)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[start : start + each])
        made.append(environment)
    return made


def take_lock(path: Path) -> int | None:
    """An open file that is locked, or None where another process holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:  # no locks on this file system
        os.close(lock)
        raise
    return lock


def dying_with(parent: int) -> Callable[[], None]:
    """For the child, before it becomes the run: ask for SIGTERM (save a checkpoint, end) when the sweep dies."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os._exit(STOPPED)

    return prepare


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all below it."""
    try:
        process = psutil.Process(pid)
        tree = [*process.children(recursive=True), process]
    except psutil.Error:
        return
    for one in tree:
        try:
            one.kill()
        except psutil.Error:
            continue


ERROR = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b")


def last_error(log: Path, code: int) -> str:
    """The last sentence of a log that tells of an error, or how the process ended."""
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return how
    lines = [line.strip() for line in text.rpartition("\n$ ")[2].splitlines()[1:] if line.strip()]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    errors = own or [line for line in lines if ERROR.match(line)]
    return f"{errors[-1] if errors else lines[-1] if lines and code > 0 else 'it said nothing'} ({how})"


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
