"""The console command ``focalcse``: one row for each command; its module is imported when it is called."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from ..errors import STOPPED, Stopped, UserError, masked, on_one_line, printable, suggest


@dataclass(frozen=True)
class Command:
    """A command. Its module has ``run``, which does the job, and ``parse``, unless ``parser`` has that."""

    module: str
    purpose: str
    parser: str = ""


# Grids hold the flags of train and eval, so these are parsed in parsing/; their modules import torch, which takes
# seconds, and --help has answered by then. The other modules import what is slow when the job runs.
COMMANDS = {
    "train": Command(
        ".train", "train a sentence encoder without labels (run_unsup.py): FILE …", "..parsing.settings:parse"
    ),
    "eval": Command(
        ".evaluate",
        "score a sentence encoder on the STS tasks (run_eval.py): MODEL",
        "..parsing.evaluation:parse_eval",
    ),
    "table": Command(".table", "print a table of many results.json: RESULTS …"),
    "inspect": Command(".inspect", "show hard negatives and likely false negatives: MODEL FILE"),
    "export": Command(".export", "write a folder that other libraries load: FOLDER"),
    "merge": Command(".merge", "put weights between an encoder and its start: BASE TRAINED --output_dir FOLDER"),
    "sweep": Command(".sweep", "train every run of a grid: GRID, the name of a shipped one or a .yaml"),
    "reproduce": Command(".reproduce", "repeat a table or figure of a paper: PAPER ITEM; alone, it lists them"),
    "compare": Command(".compare", "test what a setting changes between runs: RUNS … --factor NAME"),
    "report": Command(".report", "write tables and figures of many runs as one page: FOLDER …"),
    "push": Command(".push", "publish a trained encoder on the Hub: FOLDER org/name"),
}
# What turns off the bars of other libraries, which fill a file or a scheduler's log with carriage returns.
BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
HERE = {
    "help": "list the flags of a command, as focalcse COMMAND --help does: COMMAND",
    "version": "print the version, as --version does",
}


def main(argv: list[str] | None = None) -> None:
    """``focalcse COMMAND …``."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"] and len(argv) > 1:
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print("usage: focalcse COMMAND [flags]\n")
        for name, purpose in ({name: of.purpose for name, of in COMMANDS.items()} | HERE).items():
            print(f"  {name:9} {purpose}")
        return
    if argv[0] in ("--version", "version"):
        from .. import __version__

        print(__version__)
        return
    if argv[0] not in COMMANDS:
        known = [*COMMANDS, *HERE]
        _fail(f"there is no command {argv[0]!r}{suggest(argv[0], known)}; allowed: {', '.join(known)}")
    run(argv[0], argv[1:], script=f"focalcse {argv[0]}")


def run(command: str, argv: list[str] | None = None, script: str | None = None) -> None:
    """Run a command.

    A `UserError` ends in one sentence on stderr and exit code 2, Ctrl-C in exit code 130, and training that a signal
    stopped after it saved a checkpoint in exit code 75.
    """
    row = COMMANDS[command]
    make_streams_safe()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not sys.stderr.isatty():  # before transformers, datasets and huggingface_hub are imported, which read them then
        for name in BARS:
            os.environ.setdefault(name, "1")
    argv = sys.argv[1:] if argv is None else argv
    with tidy_after_sigterm():
        _run(row, argv, script)


def _run(row: Command, argv: list[str], script: str | None) -> None:
    try:
        require_place()
        module, _, parse = (row.parser or f"{row.module}:parse").partition(":")
        asked = getattr(import_module(module, __package__), parse)(argv, script or os.path.basename(sys.argv[0]))
        import_module(row.module, __package__).run(asked)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(141) from None
    except OSError as error:
        _fail(said_by_system(error))
    except RecursionError:
        _fail("a file that was read is nested too deeply; it is no file of this program, so leave it out")
    except Stopped as stop:
        if str(stop):  # one process speaks for all
            print(stop, file=sys.stderr)
        raise SystemExit(STOPPED) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


@contextmanager
def tidy_after_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as it otherwise does, but after what is half written has been deleted."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not ours:
        yield
        return

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except SystemExit as stop:
        if stop.code == 128 + signal.SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def make_streams_safe() -> None:
    """Let no command end because of where its output goes: a closed stream is written nowhere, and what a terminal
    cannot show (in LC_ALL=C, or of a file whose name is no UTF-8) is shown as an escape."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def require_place() -> None:
    """Raise UserError where the working directory is gone, in which every relative path would be looked for."""
    try:
        os.getcwd()
    except OSError:
        raise UserError("the working directory was deleted; go to one that exists, and start again") from None


def said_by_system(error: OSError) -> str:
    """One sentence on what the operating system refused."""
    why = error.strerror or on_one_line(error)
    where = path_of(error.filename)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where or 'a file'} cannot be written ({why}); free space there, and give the command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{where or 'a file'} cannot be read or written ({why}); give a place that is yours"
    return f"{where or 'a file or a connection'} failed ({why}); see that it is there, and give the command again"


def path_of(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""


def _fail(message: str) -> None:
    print(f"error: {printable(masked(message))}", file=sys.stderr)
    raise SystemExit(2)
