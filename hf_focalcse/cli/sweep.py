"""``focalcse sweep``: train and evaluate every run of a grid."""

from __future__ import annotations

from ..errors import UserError
from ..options.experiments import SweepOptions
from ..parsing.parser import Parser
from ..parsing.shipped import GRIDS, shipped_names


def parse(argv: list[str], script: str = "focalcse sweep") -> SweepOptions:
    """``GRID`` and flags, among them those of training; raises as `parsing.parse_eval` does."""
    shipped = ", ".join(shipped_names(GRIDS))
    parser = Parser(
        prog=script,
        usage=f"{script} GRID [--runs FOLDER] [--jobs N] [--launch COMMAND] [--only NAME …] [--dry_run] [flags]",
        description=f"Train every run of a grid: a .yaml, or one of those shipped: {shipped}.",
        epilog="Every other flag is one of training (see focalcse train --help) and replaces that of the grid's base.",
    )
    parser.add_argument("--runs", help="the folder of the runs' folders (default: runs/NAME OF THE GRID)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="the number of runs at a time, which share CPU threads and GPUs"
    )
    parser.add_argument(
        "--launch", default="", help="the command that starts a run, such as 'accelerate launch --num_processes 2'"
    )
    parser.add_argument("--only", nargs="+", help="names of runs, or patterns such as 'cls-*'")
    parser.add_argument("--dry_run", action="store_true", help="list the runs and their states, and start nothing")
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        raise SystemExit(0)
    if argv[0].startswith("-"):
        raise UserError(f"the grid comes first: {script} GRID [flags]; shipped are {shipped}")
    namespace, rest = parser.parse_known_args(argv[1:])
    if namespace.jobs < 1:
        raise UserError(f"--jobs is {namespace.jobs}; it must be at least 1")
    return SweepOptions(grid=argv[0], overrides=rest, **vars(namespace))


def run(args: SweepOptions) -> None:
    from ..experiments.sweep import sweep  # torch, since it checks the flags of training

    sweep(args)
