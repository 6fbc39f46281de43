"""A command in a forked process that something goes wrong with, and what its folder holds afterwards."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

NOBODY = 65534
STRANGE = "ü 日本 'quote\" $(touch x) `id`; rm -rf <b>" + "n" * 120  # the name of a folder
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")


def command(argv: list[str], fault: str = "", value: Any = None) -> tuple[Any, str, int]:
    """Run ``focalcse ARGV`` under a fault: (exit code, what was printed, changes on the disk); None if killed."""
    from hf_focalcse.cli import main as cli

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    said, count = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), [0]
    done = said
    sys.addaudithook(lambda event, args: watch(event, args, count, fault, value))
    if fault in FAULTS:
        done = FAULTS[fault](value, said) or said
    if fault == "closed":
        sys.stdin = sys.stdout = None  # type: ignore[assignment]
        streams = contextlib.nullcontext()
    else:
        streams = contextlib.ExitStack()
        streams.enter_context(contextlib.redirect_stdout(done))
        streams.enter_context(contextlib.redirect_stderr(said))
    code: Any = 0
    with streams:
        try:
            cli.main(argv)
        except SystemExit as end:
            code = end.code
    if fault == "full":  # both to hand back the result
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if fault == "foreign":
        os.seteuid(0)
        os.setegid(0)
    return code, said.buffer.getvalue().decode("utf-8", "replace"), count[0]


def watch(event: str, args: tuple[Any, ...], count: list[int], fault: str, value: Any) -> None:
    """Count what changes the disk; before the change of the number ``value`` the process is killed."""
    writing = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if not (writing or event in CHANGES) or str(args[0]).startswith(("/dev/", "/proc/")):
        return
    count[0] += 1
    if fault in ("SIGKILL", "SIGTERM") and count[0] == value:
        os.kill(os.getpid(), getattr(signal, fault))


def full(size: int, _: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def foreign(uid: int, _: Any) -> None:
    os.setegid(uid)
    os.seteuid(uid)


def homeless(*_: Any) -> None:
    os.environ.pop("HOME", None)


def ascii_only(_: Any, said: Any) -> Any:
    os.environ["LC_ALL"] = "C"
    return io.TextIOWrapper(said.buffer, "ascii", errors="strict", write_through=True)


def jumping(*_: Any) -> None:
    now, calls = time.time, [0]

    def back() -> float:
        calls[0] += 1
        return now() - 86_400 * calls[0]

    time.time = back


def broken_pipe(*_: Any) -> Any:
    read, write = os.pipe()
    os.close(read)
    return open(write, "w", buffering=1)


def full_output(*_: Any) -> Any:
    return builtins.open("/dev/full", "w", buffering=1)


FAULTS = {
    "full": full,
    "foreign": foreign,
    "homeless": homeless,
    "ascii": ascii_only,
    "clock": jumping,
    "umask": lambda mask, _: os.umask(mask) and None,
    "broken pipe": broken_pipe,
    "full output": full_output,
}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def visible(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without drafts and what is being saved, which nobody reads."""
    return {name: of for name, of in found.items() if not any(part.startswith(".") for part in name.split("/"))}


def torn(folder: Path) -> list[str]:
    """The files of a folder that are half written, or belong to other weights than those beside them."""
    bad = []
    for name in visible(snapshot(folder)):
        file = folder / name
        try:
            if file.suffix == ".json":
                json.loads(file.read_text())
            elif file.suffix == ".safetensors":
                load_file(file)
        except Exception as error:
            bad.append(f"{name}: {error}")
    return bad
