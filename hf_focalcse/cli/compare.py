"""``focalcse compare``: paired tests of what a setting changes between trained encoders."""

from __future__ import annotations

from ..options.experiments import CompareOptions
from ..options.field import check_ranges, options_of
from ..parsing.parser import Parser, build


def parse(argv: list[str], script: str = "focalcse compare") -> CompareOptions:
    """``RUNS …`` and flags; raises as `parsing.parse_eval` does."""
    parser = Parser(
        CompareOptions,
        prog=script,
        usage=f"{script} RUNS … --factor NAME [flags]",
        description="Test whether trained encoders differ by more than chance: paired tests over seeds and sentences.",
        epilog="Example: focalcse compare runs/study/cls* --factor loss --to infonce",
    )
    args = build(CompareOptions, parser.parse(argv))
    check_ranges(args, options_of(CompareOptions))
    return args


def run(args: CompareOptions) -> None:
    from ..experiments.compare import compare  # scipy

    compare(args)
