"""The console command ``focalcse``: one row a subcommand; what a job needs is imported when it runs."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from ..errors import STOPPED, Stopped, UserError, suggest
from ..parsing import arguments

COMMANDS = {  # name -> (parser in arguments.py, job in jobs.py or module:job, what it does)
    "train": ("parse", "train", "train a sentence encoder without labels (run_unsup.py)"),
    "eval": ("parse_eval", "evaluate", "judge a sentence encoder on the STS tasks (run_eval.py)"),
    "table": ("parse_table", "table", "print a table from many results.json"),
    "inspect": ("parse_inspect", "..experiments.inspect:inspect", "show hard and false negatives: MODEL FILE"),
    "export": ("parse_export", "export_folder", "write the folder that others load: FOLDER"),
    "sweep": (
        "parse_sweep",
        "..experiments.sweep:sweep",
        "train every run of a grid: GRID, a name or a .yaml",
    ),
    "compare": ("parse_compare", "..experiments.compare:compare", "test what runs differ by: RUNS --factor NAME"),
    "report": ("parse_report", "..experiments.report:report", "tables and figures of many runs as one page: FOLDER …"),
    "push": ("parse_push", "push_folder", "publish a trained model on the Hub: FOLDER org/name"),
}


def main(argv: list[str] | None = None) -> None:
    """``focalcse COMMAND …``."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: focalcse COMMAND [flags]\n")
        for name, (_, _, purpose) in COMMANDS.items():
            print(f"  {name:8} {purpose}")
        print("\nfocalcse COMMAND --help lists the flags of a command.")
        return
    if argv[0] == "--version":
        from .. import __version__

        print(__version__)
        return
    if argv[0] not in COMMANDS:
        _fail(f"there is no command {argv[0]!r}{suggest(argv[0], COMMANDS)}; allowed: {', '.join(COMMANDS)}")
    run(argv[0], argv[1:], script=f"focalcse {argv[0]}")


def run(command: str, argv: list[str] | None = None, script: str | None = None) -> None:
    """Run a command; a `UserError` ends in one sentence on stderr and exit code 2, Ctrl-C in exit code 130;
    training that a signal stopped after saving a checkpoint in 75."""
    parser, job, _ = COMMANDS[command]
    try:
        settings = getattr(arguments, parser)(
            sys.argv[1:] if argv is None else argv, script or os.path.basename(sys.argv[0])
        )
        module, _, name = job.rpartition(":")
        jobs = import_module(module or ".jobs", __package__)  # takes seconds; --help has answered by now
        getattr(jobs, name)(settings)
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
