"""The processes of a sweep: how they are started, locked, found and stopped, and which error their log ends with."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from ..errors import STOPPED, UserError

PR_SET_PDEATHSIG = 1
PORTS = ("main_process_port", "standalone", "rdzv", "master")  # beginnings of the flags that choose a port
ERROR = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b")


# ---- starting


def launch_words(launch: str, jobs: int) -> list[str]:
    """The command line before ``-m hf_focalcse``: this Python, or the launcher of ``--launch``.

    Raises:
        UserError: the launcher does not exist, or its quotes do not match.
    """
    try:
        words = shlex.split(launch)
    except ValueError as error:
        raise UserError(f"--launch {launch!r} is not a command line ({error}); close its quotes") from error
    if not words:
        return [sys.executable]
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which(words[0], path=beside)
    if program is None:
        raise UserError(f"--launch: there is no program {words[0]!r}; give 'accelerate launch …' or 'torchrun …'")
    flags = [word.lstrip("-").replace("-", "_") for word in words if word.startswith("--")]
    if jobs > 1 and not any(flag.startswith(PORTS) for flag in flags):
        # Any free port: several launchers would all take the default one.
        if Path(program).name == "accelerate":
            words[2:2] = ["--main_process_port", "0"]
        elif Path(program).name == "torchrun":
            words[1:1] = ["--standalone"]
    return [program, *words[1:]]


def environments(jobs: int, launched: bool) -> list[dict[str, str]]:
    """The environment of each slot: its share of the CPU threads and of the visible GPUs.

    A run without a launcher gets one GPU: on several, Trainer would use DataParallel and so another batch size.
    """
    import torch  # parsing the grid has loaded it

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list gives nested levels
    threads = int(asked) if asked.isdecimal() and int(asked) else cores
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


def dying_with(parent: int) -> Callable[[], None]:
    """What the child does before it becomes the run: ask for SIGTERM (save a checkpoint and end) if the sweep dies."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the sweep died in between
            os._exit(STOPPED)

    return prepare


# ---- who works on a run


def take_lock(path: Path) -> int | None:
    """The descriptor of an open file that is locked, or None where another process holds the lock."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:  # this file system has no locks
        os.close(lock)
        raise
    return lock


def writers() -> dict[Path, int]:
    """{folder: number of a process that writes into it}, by the ``--output_dir`` of every process that can be read.

    This finds the workers of a launcher, which hold no lock, and runs that were started by hand.
    """
    found: dict[Path, int] = {}
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []  # kernel threads have none
        for word, following in zip(words, [*words[1:], ""], strict=False):
            flag, equals, value = word.partition("=")
            if flag == "--output_dir":
                try:
                    found[(Path(process.cwd()) / (value if equals else following)).resolve()] = process.pid
                except (psutil.Error, OSError):  # it has ended, or belongs to another user
                    continue
    return found


# ---- stopping


@contextmanager
def signals_to(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle SIGTERM, SIGINT and SIGHUP; those that are ignored, as nohup does with SIGHUP, stay ignored."""
    wanted = [n for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process and all its descendants."""
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


def last_error(log: Path, code: int) -> str:
    """The last line of a log that reports an error, and how the process ended."""
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return how
    lines = [line.strip() for line in text.rpartition("\n$ ")[2].splitlines()[1:] if line.strip()]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    errors = own or [line for line in lines if ERROR.match(line)]
    return f"{errors[-1] if errors else lines[-1] if lines and code > 0 else 'no output'} ({how})"
