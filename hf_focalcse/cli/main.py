"""The console command ``focalcse``: one row for each command; its module is imported when it is called."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module

from ..errors import STOPPED, Stopped, UserError, suggest


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
            print(f"  {name:8} {purpose}")
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
    if not sys.stderr.isatty():  # before transformers, datasets and huggingface_hub are imported, which read them then
        for name in BARS:
            os.environ.setdefault(name, "1")
    argv = sys.argv[1:] if argv is None else argv
    try:
        module, _, parse = (row.parser or f"{row.module}:parse").partition(":")
        asked = getattr(import_module(module, __package__), parse)(argv, script or os.path.basename(sys.argv[0]))
        import_module(row.module, __package__).run(asked)
    except UserError as error:
        _fail(str(error))
    except Stopped as stop:
        if str(stop):  # one process speaks for all
            print(stop, file=sys.stderr)
        raise SystemExit(STOPPED) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
