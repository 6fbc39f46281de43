"""``focalcse sweep``: train and evaluate every run of a grid."""

from __future__ import annotations

from dataclasses import replace

from ..options.experiments import SweepOptions
from ..options.field import check_ranges, options_of
from ..parsing.parser import Parser, build
from ..parsing.shipped import GRIDS, shipped_names


def parse(argv: list[str], script: str = "focalcse sweep") -> SweepOptions:
    """``GRID`` and flags, among them those of training; raises as `parsing.parse_eval` does."""
    shipped = ", ".join(shipped_names(GRIDS))
    parser = Parser(
        SweepOptions,
        prog=script,
        usage=f"{script} GRID [--runs FOLDER] [--jobs N] [--launch COMMAND] [--only NAME …] [--dry_run] [flags]",
        description=f"Train every run of a grid: a .yaml, or one of those shipped: {shipped}.",
        epilog="Every other flag is one of training (see focalcse train --help) and replaces that of the grid's base.",
    )
    if not argv:
        parser.print_help()
        raise SystemExit(0)
    namespace, overrides = parser.parse_known_args(parser.spelled_out(argv))
    parser.complete(namespace)
    args = replace(build(SweepOptions, namespace), overrides=overrides)
    check_ranges(args, options_of(SweepOptions))
    return args


def run(args: SweepOptions) -> None:
    from ..experiments.sweep import sweep  # torch, since it checks the flags of training

    sweep(args)
